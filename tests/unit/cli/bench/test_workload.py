import statistics

import pytest
from hypothesis import given, strategies as st
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import WordLevel
from tokenizers.processors import TemplateProcessing

from triolet.cli.bench.workload import (
    SHAREGPT_LEN_MAX,
    SHAREGPT_LEN_MIN,
    WORDS,
    WorkloadConfig,
    arrival_times,
    draw_requests,
    lexicon_of,
    lexicon_without_tokenizer,
)
from triolet.errors import ConfigError
from triolet.tokenizer.byte_tokenizer import ByteTokenizer
from triolet.tokenizer.hf_tokenizer import HFTokenizer


def word_tokenizer() -> Tokenizer:
    """Knows 100 of the words, and puts a token before every text."""
    tokens = ["<s>", "<unk>", *(f"\u2581{word}" for word in WORDS.split()[:100])]
    model = WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<unk>")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


LETTERS = ByteTokenizer()
WORD_LEVEL = HFTokenizer(word_tokenizer())
LEXICON = lexicon_of(WORD_LEVEL)
LETTER_LEXICON = lexicon_of(LETTERS)


def test_words_are_listed_once() -> None:
    assert len(set(WORDS.split())) == len(WORDS.split()) > 200


@given(
    input_len=st.integers(2, 64),
    output_len=st.integers(1, 64),
    prefix=st.integers(0, 64),
    seed=st.integers(0, 5),
)
def test_prompt_as_text_and_as_ids_is_the_same_work(
    input_len: int, output_len: int, prefix: int, seed: int
) -> None:
    config = WorkloadConfig(
        num_prompts=3,
        input_len=input_len,
        output_len=output_len,
        shared_prefix_len=min(prefix, input_len - 1),
        bench_seed=seed,
    )
    for tokenizer, lexicon in ((WORD_LEVEL, LEXICON), (LETTERS, LETTER_LEXICON)):
        for request in draw_requests(config, lexicon, 0):
            assert request.token_ids is not None
            assert list(request.token_ids) == tokenizer.encode(request.text)
            assert len(request.token_ids) == input_len
            assert request.max_tokens == output_len


def test_words_that_are_no_token_are_left_out() -> None:
    assert len(LEXICON.pieces) == 100
    assert LEXICON.first_ids == (0,)
    assert LETTER_LEXICON.pieces == tuple("abcdefghijklmnopqrstuvwxyz")


def test_same_seed_draws_the_same_and_every_repetition_draws_anew() -> None:
    config = WorkloadConfig(num_prompts=8, input_len=32)
    first = draw_requests(config, LEXICON, 0)
    assert draw_requests(config, LEXICON, 0) == first
    texts = {request.text for r in range(-1, 4) for request in draw_requests(config, LEXICON, r)}
    assert len(texts) == 5 * 8


def test_shared_prefix_is_shared_within_a_repetition_only() -> None:
    config = WorkloadConfig(num_prompts=4, input_len=32, shared_prefix_len=24)
    prompts = [r.token_ids for r in draw_requests(config, LEXICON, 0)]
    assert len({ids[:24] for ids in prompts if ids}) == 1
    assert len({ids for ids in prompts if ids}) == 4
    other = draw_requests(config, LEXICON, 1)[0].token_ids
    assert prompts[0] is not None
    assert other is not None
    assert other[:24] != prompts[0][:24]


def test_sharegpt_mix_has_the_means_of_the_data_set_and_a_tail() -> None:
    config = WorkloadConfig(num_prompts=2000, length_mix="sharegpt", input_len=1)
    requests = draw_requests(config, LEXICON, 0)
    outputs = [request.max_tokens for request in requests]
    inputs = [len(request.token_ids or ()) for request in requests]
    # Cutting the tail at 1024 takes about a tenth off the mean of the outputs.
    assert statistics.mean(outputs) == pytest.approx(300, rel=0.1)
    assert statistics.mean(inputs) == pytest.approx(158, rel=0.1)
    assert min(outputs) >= SHAREGPT_LEN_MIN
    assert max(outputs) == SHAREGPT_LEN_MAX


def test_arrivals_are_a_poisson_process() -> None:
    times = arrival_times(WorkloadConfig(num_prompts=4000), 8.0, 0)
    assert times[0] == 0.0
    assert times == sorted(times)
    assert times[-1] / 3999 == pytest.approx(1 / 8, rel=0.1)
    assert arrival_times(WorkloadConfig(num_prompts=4000), 8.0, 1) != times


def test_words_alone_need_no_tokenizer() -> None:
    request = draw_requests(WorkloadConfig(input_len=5), lexicon_without_tokenizer(), 0)[0]
    assert request.token_ids is None
    assert len(request.text.split()) == 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_prompts": 0},
        {"input_len": 0},
        {"output_len": 0},
        {"repeat": 0},
        {"shared_prefix_len": 129},
        {"temperature": -1.0},
        {"top_p": 0.0},
    ],
)
def test_wrong_value_is_named(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError) as error:
        WorkloadConfig(**wrong).check()  # type: ignore[arg-type]  # any field
    assert error.value.param == next(iter(wrong))
