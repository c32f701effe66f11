"""How to sample, and what may be asked for.

Names and defaults are those of the OpenAI API and of vLLM where they agree. Everything a
caller can get wrong without knowing the model is checked here, when the object is made;
what needs the model (vocabulary, context) is checked by `engine/input_processor.py`.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Mapping

import attrs

from triolet.errors import InvalidRequest

TEMPERATURE_GREEDY_MAX = 1e-5
"""At or below this temperature a row is greedy (vLLM's `_SAMPLING_EPS`)."""

STOP_STRINGS_MAX = 16
STOP_STRING_CHARS_MAX = 1024
N_MAX = 128
BAD_WORDS_MAX = 128
BAD_WORD_SEQUENCES_MAX = 2 * BAD_WORDS_MAX
LOGIT_BIAS_MAX = 1024
SEED_MAX = 2**63 - 1


class OutputKind(enum.StrEnum):
    """Which part of an output each step delivers."""

    DELTA = "delta"
    """Only what is new."""
    CUMULATIVE = "cumulative"
    """Everything so far."""
    FINAL_ONLY = "final_only"
    """One output, at the end."""


def _check(condition: bool, param: str, wanted: str, got: object) -> None:
    if not condition:
        raise InvalidRequest(f"{param} must be {wanted}, got {got!r:.200}", param=param)


def _json_schema(value: object) -> str | None:
    """The text of a schema, given as text or as the schema itself."""
    if value is None or isinstance(value, str):
        return value
    try:
        if isinstance(value, Mapping):
            return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            f"structured_outputs.json_schema is no JSON: {error}",
            param="structured_outputs.json_schema",
        ) from error
    raise InvalidRequest(
        f"structured_outputs.json_schema must be a schema or its text, got {type(value).__name__}",
        param="structured_outputs.json_schema",
    )


def _choice(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise InvalidRequest(
        f"structured_outputs.choice must be a list of strings, got {value!r:.200}",
        param="structured_outputs.choice",
    )


@attrs.frozen
class StructuredOutputs:
    """A constraint on the text of the output; exactly one of the five kinds is set.

    Attributes:
        json_schema: A JSON schema, as its text or as a mapping.
        json_object: Any JSON object.
        regex: A regular expression that the whole output matches.
        choice: The output is one of these strings.
        grammar: A grammar in Lark syntax.
        strict: Refuse a schema with an unsupported keyword; otherwise ignore it and warn.
        any_whitespace: Allow (bounded) white space between JSON tokens.
    """

    json_schema: str | None = attrs.field(default=None, converter=_json_schema)
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] | None = attrs.field(default=None, converter=_choice)
    grammar: str | None = None
    strict: bool = True
    any_whitespace: bool = False

    def __attrs_post_init__(self) -> None:
        for name in ("regex", "grammar"):
            value: object = getattr(self, name)
            _check(
                value is None or isinstance(value, str),
                f"structured_outputs.{name}",
                "a string",
                value,
            )
        for name in ("json_object", "strict", "any_whitespace"):
            value = getattr(self, name)
            _check(isinstance(value, bool), f"structured_outputs.{name}", "true or false", value)
        kinds = [
            name
            for name in ("json_schema", "json_object", "regex", "choice", "grammar")
            if getattr(self, name) not in (None, False)
        ]
        if len(kinds) != 1:
            given = ", ".join(kinds) or "none"
            raise InvalidRequest(
                "structured_outputs takes exactly one of json, json_object, regex, choice and "
                f"grammar; got {given}",
                param="structured_outputs",
            )
        if self.choice is not None and (not self.choice or "" in self.choice):
            raise InvalidRequest(
                "structured_outputs.choice must list at least one string, none of them empty",
                param="structured_outputs.choice",
            )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _strings(value: object, param: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, (list, tuple)) and all(isinstance(s, str) for s in value):
        return tuple(value)
    raise InvalidRequest(
        f"{param} must be a string or a list of strings, got {value!r}", param=param
    )


def _ints(value: object, param: str) -> tuple[int, ...]:
    if value is None:
        return ()
    if isinstance(value, (list, tuple)) and all(_is_int(i) for i in value):
        return tuple(value)
    raise InvalidRequest(f"{param} must be a list of token ids, got {value!r}", param=param)


def _stop(value: object) -> tuple[str, ...]:
    return _strings(value, "stop")


def _stop_token_ids(value: object) -> tuple[int, ...]:
    return _ints(value, "stop_token_ids")


def _bad_words(value: object) -> tuple[str, ...]:
    return _strings(value, "bad_words")


def _bad_word_token_ids(value: object) -> tuple[tuple[int, ...], ...]:
    if not isinstance(value, (list, tuple)):
        raise InvalidRequest(
            f"bad_word_token_ids must be a list of lists of token ids, got {value!r}",
            param="bad_word_token_ids",
        )
    return tuple(_ints(word, "bad_word_token_ids") for word in value)


def _logits_processors(value: object) -> tuple[str, ...]:
    return _strings(value, "logits_processors")


def _allowed_token_ids(value: object) -> tuple[int, ...] | None:
    return None if value is None else _ints(value, "allowed_token_ids")


@attrs.frozen(kw_only=True)
class SamplingParams:
    """Sampling parameters of one request.

    Attributes:
        n: Number of outputs.
        keep: End the request as soon as this many of the n outputs are finished; the others
            are cancelled. None keeps all.
        temperature: 0 is greedy.
        top_p: Keep the most likely tokens that together reach this mass; 1 keeps all.
        top_k: Keep this many tokens; 0 or -1 keeps all.
        min_p: Drop tokens less likely than this share of the most likely one.
        seed: Same seed, same output, whatever else is running. None: one is drawn.
        max_tokens: Ceiling of output tokens per output; None: what the context leaves.
        min_tokens: No EOS, stop id or stop string ends an output before this many tokens.
        stop: Strings that end an output; cut off unless `include_stop_str_in_output`.
        stop_token_ids: Token ids that end an output.
        ignore_eos: EOS does not end an output.
        include_stop_str_in_output: Leave the stop string at the end of the text.
        presence_penalty: Subtracted once from the logit of every token in the output.
        frequency_penalty: Subtracted per occurrence in the output.
        repetition_penalty: Divides positive, multiplies negative logits of tokens seen in
            prompt or output (CTRL, arXiv:1909.05858).
        logit_bias: Token id to a number added to its logit, in [-100, 100].
        bad_words: Texts that never appear in an output.
        bad_word_token_ids: Sequences of token ids that never appear in an output. The engine
            adds those of `bad_words` (with and without a leading space) here: the runner
            knows no text.
        allowed_token_ids: Only these tokens may be sampled.
        logprobs: Report the sampled token and this many of the most likely at each position.
        prompt_logprobs: The same for every position of the prompt.
        skip_special_tokens: Leave special tokens out of the text.
        output_kind: Which part each output object carries.
        structured_outputs: A grammar the output must follow.
        logits_processors: Names of processors registered with the engine, applied in order.
        beam_width: Beam search of this width instead of sampling; n outputs are returned, at
            the end, so a deadline that passes before it is `DeadlineExceeded`. It ranks raw
            log-probabilities: temperature, top_k, top_p, min_p and seed have no part in it.
        length_penalty: Beam score is cumulative logprob / length ** length_penalty.

    Raises:
        InvalidRequest: A value is out of range; `param` names the field.
    """

    n: int = 1
    keep: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = attrs.field(default=(), converter=_stop)
    stop_token_ids: tuple[int, ...] = attrs.field(default=(), converter=_stop_token_ids)
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = attrs.field(factory=dict[int, float])
    bad_words: tuple[str, ...] = attrs.field(default=(), converter=_bad_words)
    bad_word_token_ids: tuple[tuple[int, ...], ...] = attrs.field(
        default=(), converter=_bad_word_token_ids
    )
    allowed_token_ids: tuple[int, ...] | None = attrs.field(
        default=None, converter=_allowed_token_ids
    )
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    output_kind: OutputKind = OutputKind.DELTA
    structured_outputs: StructuredOutputs | None = None
    logits_processors: tuple[str, ...] = attrs.field(default=(), converter=_logits_processors)
    beam_width: int | None = None
    length_penalty: float = 1.0

    def __attrs_post_init__(self) -> None:
        self._check_types()
        self._check_counts()
        self._check_distribution()
        self._check_tokens()

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature <= TEMPERATURE_GREEDY_MAX

    def _check_types(self) -> None:
        """Annotations promise these; callers without a type checker may break them."""

        def require(name: str, kinds: type | tuple[type, ...], wanted: str) -> None:
            value: object = getattr(self, name)
            _check(isinstance(value, kinds), name, wanted, value)

        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            require(name, bool, "true or false")
        require("output_kind", OutputKind, "an OutputKind")
        require("structured_outputs", (StructuredOutputs, type(None)), "StructuredOutputs")
        require("logit_bias", Mapping, "a mapping")

    def _check_counts(self) -> None:
        _check(_is_int(self.n) and 1 <= self.n <= N_MAX, "n", f"an integer in 1..{N_MAX}", self.n)
        if self.keep is not None:
            _check(
                _is_int(self.keep) and 1 <= self.keep <= self.n,
                "keep",
                f"an integer in 1..n ({self.n})",
                self.keep,
            )
        if self.max_tokens is not None:
            _check(
                _is_int(self.max_tokens) and self.max_tokens >= 1,
                "max_tokens",
                "a positive integer",
                self.max_tokens,
            )
        ceiling = math.inf if self.max_tokens is None else self.max_tokens
        _check(
            _is_int(self.min_tokens) and 0 <= self.min_tokens <= ceiling,
            "min_tokens",
            "an integer between 0 and max_tokens",
            self.min_tokens,
        )
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            _check(
                value is None or (_is_int(value) and value >= 0),
                name,
                "a non-negative integer",
                value,
            )
        if self.seed is not None:
            _check(
                _is_int(self.seed) and -SEED_MAX - 1 <= self.seed <= SEED_MAX,
                "seed",
                "a 64-bit integer",
                self.seed,
            )
        if self.beam_width is not None:
            _check(
                _is_int(self.beam_width) and self.n <= self.beam_width <= N_MAX,
                "beam_width",
                f"an integer in n ({self.n})..{N_MAX}",
                self.beam_width,
            )
            _check(self.keep is None, "keep", "unset with beam_width", self.keep)

    def _check_distribution(self) -> None:
        def within(name: str, low: float, high: float, wanted: str) -> None:
            value = getattr(self, name)
            _check(_is_number(value) and low <= value <= high, name, wanted, value)

        within("temperature", 0.0, 2.0, "a number in [0, 2]")
        within("top_p", 0.0, 1.0, "a number in (0, 1]")
        _check(self.top_p > 0.0, "top_p", "a number in (0, 1]", self.top_p)
        within("min_p", 0.0, 1.0, "a number in [0, 1]")
        _check(
            _is_int(self.top_k) and self.top_k >= -1,
            "top_k",
            "a positive integer, or 0 or -1 to keep all tokens",
            self.top_k,
        )
        within("presence_penalty", -2.0, 2.0, "a number in [-2, 2]")
        within("frequency_penalty", -2.0, 2.0, "a number in [-2, 2]")
        _check(
            _is_number(self.repetition_penalty) and 0.01 <= self.repetition_penalty <= 100,
            "repetition_penalty",
            "a number in [0.01, 100]",
            self.repetition_penalty,
        )
        # Lengths go up to millions: beyond this their powers leave the range of a float.
        within("length_penalty", -10.0, 10.0, "a number in [-10, 10]")

    def _check_tokens(self) -> None:
        _check(
            len(self.stop) <= STOP_STRINGS_MAX
            and all(0 < len(s) <= STOP_STRING_CHARS_MAX for s in self.stop),
            "stop",
            f"at most {STOP_STRINGS_MAX} strings of 1..{STOP_STRING_CHARS_MAX} characters",
            self.stop if len(self.stop) <= STOP_STRINGS_MAX else f"{len(self.stop)} strings",
        )
        _check(
            len(self.bad_words) <= BAD_WORDS_MAX and "" not in self.bad_words,
            "bad_words",
            f"at most {BAD_WORDS_MAX} non-empty strings",
            f"{len(self.bad_words)} strings",
        )
        _check(
            len(self.bad_word_token_ids) <= BAD_WORD_SEQUENCES_MAX and all(self.bad_word_token_ids),
            "bad_word_token_ids",
            f"at most {BAD_WORD_SEQUENCES_MAX} non-empty lists of token ids",
            f"{len(self.bad_word_token_ids)} lists",
        )
        _check(
            self.allowed_token_ids is None or len(self.allowed_token_ids) > 0,
            "allowed_token_ids",
            "a non-empty list of token ids",
            self.allowed_token_ids,
        )
        _check(
            len(self.logit_bias) <= LOGIT_BIAS_MAX,
            "logit_bias",
            f"a map of at most {LOGIT_BIAS_MAX} entries",
            f"{len(self.logit_bias)} entries",
        )
        for token_id, bias in self.logit_bias.items():
            _check(_is_int(token_id), "logit_bias", "a map with token ids as keys", token_id)
            _check(
                _is_number(bias) and -100 <= bias <= 100,
                f"logit_bias.{token_id}",
                "a number in [-100, 100]",
                bias,
            )
