"""Tokenizers made in code, one of each kind of decoder, and a sink that remembers."""

from __future__ import annotations

from collections.abc import Callable

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from triolet.output import OutputDelta, TokenLogprobs, Usage
from triolet.tokenizer.hf_tokenizer import HFTokenizer

HARD_TEXT = (
    "Hello, world!  Two  spaces. Čeština: příliš žluťoučký. 日本語と漢字。 한국어 "
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301a\u0300\u0323 \u202bعربي\u202c \x00\ufffd\ufffd tail\n\n"
)
SPECIALS = ("<s>", "</s>", "<|user|>")


def byte_level_backend() -> Tokenizer:
    """GPT-2's kind: 256 bytes and a few merges, so that tokens cut characters anywhere."""
    vocab = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges: list[tuple[str, str]] = []
    # "ðŁ" is half of most emoji, "ãģ" two thirds of a kana.
    for left, right in (("Ġ", "t"), ("Ġt", "h"), ("l", "o"), ("ð", "Ł"), ("ã", "ģ"), ("i", "n")):
        merges.append((left, right))
        vocab[left + right] = len(vocab)
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIALS])
    return backend


def byte_fallback_backend() -> Tokenizer:
    """Llama 2's kind: SentencePiece with single bytes for what it has no piece for."""
    vocab = {"<unk>": 0}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for piece in (
        *"▁abcdefghijklmnopqrstuvwxyzHTé日",
        "▁t",
        "▁th",
        "lo",
        "in",
        "\ufffd",
        "▁\ufffd",
    ):
        vocab[piece] = len(vocab)
    merges = [("▁", "t"), ("▁t", "h"), ("l", "o"), ("i", "n")]
    backend = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIALS])
    return backend


def byte_level_tokenizer() -> HFTokenizer:
    """`byte_level_backend` behind the seam."""
    return HFTokenizer(byte_level_backend())


def byte_fallback_tokenizer() -> HFTokenizer:
    """`byte_fallback_backend` behind the seam."""
    return HFTokenizer(byte_fallback_backend())


class RecordingSink:
    """A sink that keeps what it got, and can be told to raise."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.deltas: list[OutputDelta] = []
        self.prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
        self.cached_tokens: int | None = None
        self.usage: Usage | None = None
        self.error: Exception | None = None
        self.raises_in: frozenset[str] = frozenset()
        self.on_put: Callable[[], None] | None = None

    def start(self, cached_tokens: int) -> None:
        self._called("start")
        self.cached_tokens = cached_tokens

    def put(self, delta: OutputDelta) -> None:
        self._called("put")
        self.deltas.append(delta)
        if self.on_put is not None:
            self.on_put()

    def score_prompt(self, logprobs: tuple[TokenLogprobs | None, ...]) -> None:
        self._called("score_prompt")
        self.prompt_logprobs = logprobs

    def finish(self, usage: Usage) -> None:
        self._called("finish")
        self.usage = usage

    def fail(self, error: Exception) -> None:
        self._called("fail")
        self.error = error

    def text(self, index: int = 0) -> str:
        """Text of one output, from its deltas."""
        return "".join(delta.text for delta in self.deltas if delta.index == index)

    def token_ids(self, index: int = 0) -> list[int]:
        """Tokens of one output, from its deltas."""
        return [i for delta in self.deltas if delta.index == index for i in delta.token_ids]

    def last(self, index: int = 0) -> OutputDelta:
        """The last delta of one output."""
        return [delta for delta in self.deltas if delta.index == index][-1]

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.raises_in:
            raise RuntimeError(f"broken {name}")
