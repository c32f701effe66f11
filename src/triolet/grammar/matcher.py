"""Follow one output through a grammar: which tokens may come next.

State is nothing but the tokens of the output so far: a matcher is rebuilt from them after
preemption, after a crash, or on another replica.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from triolet.errors import InvalidRequest, RequestFailed
from triolet.grammar.compile import check_limits, clip, compile_grammar, field_name
from triolet.sampling_params import StructuredOutputs

CACHED_GRAMMARS_MAX = 64
"""Compiled grammars kept; a large one takes a few megabytes."""


LIMITS = LLParserLimits(initial_lexer_fuel=200_000)
"""A fifth of llguidance's default for what a grammar may cost before its first token: it is
compiled in the worker, where everybody waits. The other defaults bound the work per token."""


class Matcher:
    """One output under a grammar. Not thread-safe.

    Args:
        matcher: llguidance's own, owned from now on.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    @property
    def is_accepting(self) -> bool:
        """Whether the output may end here: EOS is allowed then, and only then."""
        return bool(self._matcher.is_accepting())

    @property
    def is_finished(self) -> bool:
        """Whether nothing but EOS can follow."""
        return bool(self._matcher.is_stopped()) and not self._matcher.is_error()

    def mask(self) -> bytes:
        """Which tokens may come next: bit i % 8 of byte i // 8 stands for token i.

        Releases the GIL. Bounded: a grammar that needs too much work per token fails.

        Raises:
            RequestFailed: The grammar cannot go on.
        """
        mask = self._matcher.compute_bitmask()
        self._check()
        return mask

    def accept(self, token_ids: Sequence[int]) -> None:
        """Go on with these tokens of the output.

        Raises:
            RequestFailed: The grammar does not allow one of them.
        """
        for token_id in token_ids:
            # One by one: `consume_tokens` refuses EOS after the end, `consume_token` takes it.
            if not self._matcher.consume_token(token_id):
                self._check()
                raise RequestFailed(f"the grammar does not allow the token {token_id} here")

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestFailed(f"the grammar failed: {clip(self._matcher.get_error())}")


class GrammarCompiler:
    """Makes matchers for one tokenizer; keeps the grammars used last.

    Args:
        tokenizer_json: Text of the model's tokenizer.json. Reading it takes 0.3 s for 49k
            tokens and some seconds for 262k, with the GIL held: build this while loading.
        vocab_size: Tokens in a mask.
        eos_token_ids: Allowed exactly where the grammar accepts.

    Raises:
        ValueError: llguidance cannot read the tokenizer.
    """

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer = LLTokenizer(
            tokenizer_json, n_vocab=vocab_size, eos_token=list(eos_token_ids)
        )
        self._compiled: OrderedDict[StructuredOutputs, LLMatcher] = OrderedDict()
        self._refused: OrderedDict[StructuredOutputs, str] = OrderedDict()

    @classmethod
    def from_directory(
        cls, directory: Path, vocab_size: int, eos_token_ids: Sequence[int]
    ) -> GrammarCompiler | None:
        """The compiler of a model directory, None if it has no tokenizer.json or no EOS."""
        path = directory / "tokenizer.json"
        if not path.is_file() or not eos_token_ids:
            return None
        return cls(path.read_text(encoding="utf-8"), vocab_size, eos_token_ids)

    def matcher(self, structured: StructuredOutputs, output_token_ids: Sequence[int]) -> Matcher:
        """A matcher that has seen the output so far. Releases the GIL while compiling.

        Raises:
            RequestFailed: The grammar does not allow the output.
            InvalidRequest: It cannot be followed: it is beyond a limit, or needs too much work.
        """
        compiled = self._compiled.get(structured)
        if compiled is None:
            compiled = self._compile(structured)
            self._compiled[structured] = compiled
            if len(self._compiled) > CACHED_GRAMMARS_MAX:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(structured)
        matcher = Matcher(compiled.deep_copy())
        matcher.accept(output_token_ids)
        return matcher

    def _compile(self, structured: StructuredOutputs) -> LLMatcher:
        """Compile, and go as far as the first mask: some grammars fail only there.

        What failed is remembered: the same grammar must not cost a step twice.
        """
        if (reason := self._refused.get(structured)) is None:
            check_limits(structured)
            compiled = LLMatcher(
                self._tokenizer, compile_grammar(structured), log_level=0, limits=LIMITS
            )
            if not compiled.is_error():
                first = compiled.deep_copy()
                first.compute_bitmask()
                if not first.is_error():
                    return compiled
                compiled = first
            reason = clip(compiled.get_error())
            self._refused[structured] = reason
            if len(self._refused) > CACHED_GRAMMARS_MAX:
                self._refused.popitem(last=False)
        param = field_name(structured)
        raise InvalidRequest(f"{param} cannot be followed with this model: {reason}", param=param)
