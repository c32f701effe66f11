"""Answers: golden bytes, and a joined stream equals the whole body for any chunking."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from triolet.output import OutputDelta, TokenLogprobs, Usage
from triolet.protocol.answer import AcceptedPrompt, Answer, AnswerHead
from triolet.protocol.chat_answer import ChatBody, ChatShape, ChatStream
from triolet.protocol.completion_answer import CompletionBody, CompletionShape, CompletionStream
from triolet.protocol.finish import wire_finish
from triolet.request import FinishReason

HEAD = AnswerHead(id="chatcmpl-1", created=1700000000, model="m")
DONE = "data: [DONE]\n\n"


class Letters:
    """Token i is the character chr(i)."""

    def token_text(self, token_id: int) -> str:
        return chr(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        return chr(token_id).encode()


NAMES = Letters()


def scored(character: str) -> TokenLogprobs:
    token_id = ord(character)
    return TokenLogprobs(token_id, -token_id / 100, 1, ((token_id, -token_id / 100), (65, -9.0)))


def delta(
    text: str, index: int = 0, finish: FinishReason | None = None, stop: str | int | None = None
) -> OutputDelta:
    return OutputDelta(
        index=index,
        text=text,
        token_ids=tuple(map(ord, text)),
        logprobs=tuple(map(scored, text)),
        finish_reason=finish,
        stop_reason=stop,
        token_texts=tuple(text),
    )


def feed(
    answer: Answer, prompts: list[AcceptedPrompt], deltas: Iterable[tuple[int, OutputDelta]]
) -> str:
    out = [answer.start(i, prompt) for i, prompt in enumerate(prompts)]
    out += [answer.put(i, d) for i, d in deltas]
    out.append(answer.finish([Usage(len(p.token_ids), 5, 1) for p in prompts]))
    return b"".join(out).decode()


def events(stream: str) -> list[dict[str, Any]]:
    assert stream.endswith(DONE)
    lines = stream.removesuffix(DONE).split("\n\n")[:-1]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


PROMPT = AcceptedPrompt((104, 105), "hi", ("h", "i"))


def test_chat_stream_golden_bytes() -> None:
    shape = ChatShape(n=1, names=NAMES, include_usage=True)
    got = feed(
        ChatStream(HEAD, shape),
        [PROMPT],
        [(0, delta('He"l')), (0, delta("")), (0, delta("lo", finish=FinishReason.STOP))],
    )
    head = '"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m"'
    assert got == (
        f'data: {{{head},"choices":[{{"index":0,"delta":{{"role":"assistant","content":""}},'
        '"logprobs":null,"finish_reason":null}]}\n\n'
        f'data: {{{head},"choices":[{{"index":0,"delta":{{"content":"He\\"l"}},'
        '"logprobs":null,"finish_reason":null}]}\n\n'
        f'data: {{{head},"choices":[{{"index":0,"delta":{{"content":"lo"}},'
        '"logprobs":null,"finish_reason":"stop","stop_reason":null}]}\n\n'
        f'data: {{{head},"choices":[],"usage":{{"prompt_tokens":2,"completion_tokens":5,'
        '"total_tokens":7,"prompt_tokens_details":{"cached_tokens":1}}}\n\n'
        "data: [DONE]\n\n"
    )


def test_completion_stream_golden_bytes() -> None:
    head = replace(HEAD, id="cmpl-1")
    shape = CompletionShape(n=1, num_prompts=2, names=NAMES)
    got = feed(
        CompletionStream(head, shape),
        [PROMPT, PROMPT],
        [
            (1, delta("b")),
            (0, delta("a", finish=FinishReason.LENGTH)),
            (1, delta("", finish=FinishReason.STOP, stop=7)),
        ],
    )
    start = 'data: {"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"m",'
    assert got == (
        f'{start}"choices":[{{"index":1,"text":"b","logprobs":null,"finish_reason":null}}]}}\n\n'
        f'{start}"choices":[{{"index":0,"text":"a","logprobs":null,"finish_reason":"length",'
        '"stop_reason":null}]}\n\n'
        f'{start}"choices":[{{"index":1,"text":"","logprobs":null,"finish_reason":"stop",'
        '"stop_reason":7}]}\n\n'
        "data: [DONE]\n\n"
    )


@pytest.mark.parametrize(
    ("reason", "stop", "expected"),
    [
        (None, None, (None, None)),
        (FinishReason.STOP, None, ("stop", None)),
        (FinishReason.STOP, "\n", ("stop", "\n")),
        (FinishReason.LENGTH, None, ("length", None)),
        (FinishReason.TIMEOUT, None, ("length", "timeout")),
        (FinishReason.CANCELLED, None, ("abort", None)),
    ],
)
def test_finish_reason_on_the_wire(
    reason: FinishReason | None, stop: str | None, expected: tuple[object, object]
) -> None:
    assert wire_finish(delta("x", finish=reason, stop=stop)) == expected


TEXTS = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), min_size=1, max_size=12)


@st.composite
def chunkings(draw: st.DrawFn, num_outputs: int) -> list[tuple[int, OutputDelta]]:
    """Deltas of several outputs, each split anywhere, interleaved anyhow."""
    streams: list[list[OutputDelta]] = []
    for index in range(num_outputs):
        text = draw(TEXTS)
        cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=4)) | {0, len(text)})
        pieces = [text[a:b] for a, b in itertools.pairwise(cuts)]
        reason = draw(
            st.sampled_from([FinishReason.STOP, FinishReason.LENGTH, FinishReason.TIMEOUT])
        )
        deltas = [delta(piece, index) for piece in pieces[:-1]]
        streams.append([*deltas, delta(pieces[-1], index, reason, draw(st.none() | st.just("s")))])
    order = draw(st.permutations([i for i, s in enumerate(streams) for _ in s]))
    return [(i, streams[i].pop(0)) for i in order]


@pytest.mark.slow
@given(chunkings(3), st.booleans(), st.booleans(), st.booleans())
def test_joined_chat_stream_equals_the_body(
    deltas: list[tuple[int, OutputDelta]], logprobs: bool, ids: bool, continuous: bool
) -> None:
    shape = ChatShape(
        n=3,
        names=NAMES,
        logprobs=logprobs,
        return_token_ids=ids,
        include_usage=True,
        continuous_usage=continuous,
    )
    single = [(0, d) for _, d in deltas]
    chunks = events(feed(ChatStream(HEAD, shape), [PROMPT], single))
    body = json.loads(feed(ChatBody(HEAD, shape), [PROMPT], single))
    assert {c["id"] for c in chunks} == {body["id"]}
    assert [c["choices"][0]["delta"].get("role") for c in chunks[:3]] == ["assistant"] * 3
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == body["usage"]
    if continuous:
        assert chunks[-2]["usage"]["completion_tokens"] == sum(len(d.token_ids) for _, d in deltas)
    for index, choice in enumerate(body["choices"]):
        own = [c["choices"][0] for c in chunks[:-1] if c["choices"][0]["index"] == index]
        text = "".join(c["delta"].get("content", "") for c in own)
        assert text == choice["message"]["content"]
        assert own[-1]["finish_reason"] == choice["finish_reason"]
        assert own[-1]["stop_reason"] == choice["stop_reason"]
        assert all(c["finish_reason"] is None for c in own[:-1])
        if logprobs:
            joined = [entry for c in own if c["logprobs"] for entry in c["logprobs"]["content"]]
            assert joined == choice["logprobs"]["content"]
        if ids:
            assert [i for c in own for i in c.get("token_ids", [])] == choice["token_ids"]


@pytest.mark.slow
@given(chunkings(2), chunkings(2), st.booleans(), st.booleans(), st.booleans())
def test_joined_completion_stream_equals_the_body(
    first: list[tuple[int, OutputDelta]],
    second: list[tuple[int, OutputDelta]],
    logprobs: bool,
    echo: bool,
    ids: bool,
) -> None:
    shape = CompletionShape(
        n=2, num_prompts=2, names=NAMES, logprobs=logprobs, echo=echo, return_token_ids=ids
    )
    deltas = [(0, d) for _, d in first] + [(1, d) for _, d in second]
    scores = (None, scored("i"))

    def run(answer: CompletionStream | CompletionBody) -> str:
        out = [answer.start(i, PROMPT) for i in range(2)]
        late = deltas[:1]  # a delta may come before the prompt's scores
        out += [answer.put(i, d) for i, d in late]
        if logprobs and echo:
            out += [answer.score_prompt(i, scores) for i in range(2)]
        out += [answer.put(i, d) for i, d in deltas[1:]]
        return b"".join([*out, answer.finish([Usage(2, 3)] * 2)]).decode()

    chunks = events(run(CompletionStream(HEAD, shape)))
    body = json.loads(run(CompletionBody(HEAD, shape)))
    assert [c["index"] for c in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["prompt_tokens"] == 4
    for index, choice in enumerate(body["choices"]):
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert "".join(c["text"] for c in own) == choice["text"]
        assert choice["text"].startswith("hi") or not echo
        assert own[-1]["finish_reason"] == choice["finish_reason"]
        if logprobs:
            for name, values in choice["logprobs"].items():
                joined = [v for c in own if c["logprobs"] for v in c["logprobs"][name]]
                assert joined == values
            offsets = choice["logprobs"]["text_offset"]
            assert [choice["text"][o] for o in offsets] == choice["logprobs"]["tokens"]


def test_completion_logprobs_of_an_echoed_prompt() -> None:
    shape = CompletionShape(n=1, num_prompts=1, names=NAMES, logprobs=True, echo=True)
    answer = CompletionBody(HEAD, shape)
    answer.start(0, PROMPT)
    answer.score_prompt(0, (None, scored("i")))
    answer.put(0, delta("X", finish=FinishReason.LENGTH))
    choice = json.loads(answer.finish([Usage(2, 1)]))["choices"][0]
    assert choice["text"] == "hiX"
    assert choice["logprobs"] == {
        "text_offset": [0, 1, 2],
        "tokens": ["h", "i", "X"],
        "token_logprobs": [None, -1.05, -0.88],
        "top_logprobs": [None, {"i": -1.05, "A": -9.0}, {"X": -0.88, "A": -9.0}],
    }


def test_prompt_only_leaves_the_generated_token_out() -> None:
    shape = CompletionShape(
        n=1, num_prompts=1, names=NAMES, logprobs=True, echo=True, prompt_only=True
    )
    answer = CompletionBody(HEAD, shape)
    answer.start(0, PROMPT)
    answer.score_prompt(0, (None, scored("i")))
    answer.put(0, delta("X", finish=FinishReason.LENGTH))
    body = json.loads(answer.finish([Usage(2, 1)]))
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("hi", "length")
    assert choice["logprobs"]["tokens"] == ["h", "i"]
    assert body["usage"]["completion_tokens"] == 0


def test_sampled_token_is_among_the_top_even_if_it_was_not() -> None:
    shape = CompletionShape(n=1, num_prompts=1, names=NAMES, logprobs=True)
    unlikely = replace_logprobs(delta("z", finish=FinishReason.STOP), ((65, -0.1),))
    answer = CompletionBody(HEAD, shape)
    answer.start(0, PROMPT)
    answer.put(0, unlikely)
    choice = json.loads(answer.finish([Usage(2, 1)]))["choices"][0]
    assert choice["logprobs"]["top_logprobs"] == [{"A": -0.1, "z": -1.22}]


def replace_logprobs(d: OutputDelta, top: tuple[tuple[int, float], ...]) -> OutputDelta:
    entry = TokenLogprobs(d.token_ids[0], -1.22, 9, top)
    return OutputDelta(d.index, d.text, d.token_ids, (entry,), d.finish_reason)


def test_prompt_logprobs_have_rank_and_text() -> None:
    shape = ChatShape(n=1, names=NAMES)
    answer = ChatBody(HEAD, shape)
    answer.start(0, PROMPT)
    answer.score_prompt(0, (None, TokenLogprobs(105, -3.0, 7, ((65, -0.5),))))
    answer.put(0, delta("x", finish=FinishReason.STOP))
    assert json.loads(answer.finish([Usage(2, 1)]))["prompt_logprobs"] == [
        None,
        {
            "65": {"logprob": -0.5, "rank": 1, "decoded_token": "A"},
            "105": {"logprob": -3.0, "rank": 7, "decoded_token": "i"},
        },
    ]


def test_text_with_a_lone_surrogate_is_encoded_all_the_same() -> None:
    stream = feed(
        ChatStream(HEAD, ChatShape(n=1, names=NAMES)),
        [PROMPT],
        [(0, OutputDelta(0, "a\ud800b", (1,))), (0, delta("", finish=FinishReason.LENGTH))],
    )
    assert events(stream)[1]["choices"][0]["delta"]["content"] == "a?b"
