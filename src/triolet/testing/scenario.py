"""A scenario: workloads x faults x checks, as data. TOML in, attrs out.

    name = "crash-and-go-on"
    about = "The worker dies three times; every answer is the one of a quiet run."

    [engine]                    # any setting of EngineConfig
    max_num_seqs = 4

    [model]                     # the model that is simulated
    step_s = 0.01

    [[workload]]
    clients = 8
    max_tokens = [4, 40]

    [[fault]]
    kind = "runner_crash"
    times = 3
    within_s = [0.0, 1.0]

What is drawn (arrivals, prompts, when a fault strikes) is drawn from the seed of a run, and
from nothing else.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

import attrs
import cattrs
from cattrs.gen import make_dict_structure_fn

from triolet.config import EngineConfig
from triolet.errors import ConfigError, TrioletError
from triolet.testing.faults import FAULT_CLASSES, Fault, IntSpan, Span

NOT_OVER_HTTP = (
    "keep_one",
    "logprobs",
    "resumes",
    "cumulative",
    "sinks",
    "broken_sinks",
    "prompt_logprobs",
    "beams",
)
"""Shares that a workload of HTTP clients cannot have."""


@attrs.frozen(kw_only=True)
class Workload:
    """Clients of one kind. A share is the probability that one client is like that.

    Attributes:
        clients: How many.
        starts_s: When the first may come.
        over_s: They arrive evenly at random over this time; 0 is a burst.
        via: "library" calls `generate`, "http" posts to the API, in memory.
        streams: Share of HTTP clients that stream their answer.
        prompt_tokens: Shortest and longest prompt.
        shared_prefix_tokens: Tokens that all prompts begin with.
        text_prompts: Share that sends text, which has to be tokenized first.
        max_tokens: Fewest and most tokens asked for.
        num_outputs: Fewest and most outputs (`n`).
        keep_one: Share of those with several outputs that keep the first to finish.
        sampled: Share that samples with a seed; the others are greedy.
        stops: Share that has stop strings.
        logprobs: Share that asks for log-probabilities.
        prompt_logprobs: Share that asks for those of the prompt.
        beams: Share that asks for a beam search.
        resumes: Share that brings the first tokens of its output.
        cumulative: Share that takes everything so far in each piece.
        deadlines: Share that has a deadline, of a kind drawn at random.
        deadline_s: Shortest and longest deadline.
        leaves: Share that leaves after `leaves_after_s`, whatever it has by then.
        leaves_after_s: See `leaves`.
        breaks: Share that stops reading after some pieces and leaves.
        slow: Share that pauses between two pieces.
        read_delay_s: See `slow`.
        ignores: Share that never reads, and leaves after `ignore_s`.
        ignore_s: See `ignores`.
        sinks: Share that brings a sink of its own.
        broken_sinks: Share whose sink raises.
        poison: Share whose computation kills the runner.
        row_errors: Share whose computation fails alone.
        priorities: Lowest and highest priority.
        salts: Number of cache salts in use.
    """

    clients: int = 8
    starts_s: float = 0.0
    over_s: float = 0.2
    via: Literal["library", "http"] = "library"
    streams: float = 0.7
    prompt_tokens: IntSpan = (1, 40)
    shared_prefix_tokens: int = 0
    text_prompts: float = 0.0
    max_tokens: IntSpan = (1, 24)
    num_outputs: IntSpan = (1, 1)
    keep_one: float = 0.0
    sampled: float = 0.5
    stops: float = 0.0
    logprobs: float = 0.0
    prompt_logprobs: float = 0.0
    beams: float = 0.0
    resumes: float = 0.0
    cumulative: float = 0.0
    deadlines: float = 0.0
    deadline_s: Span = (0.0, 0.5)
    leaves: float = 0.0
    leaves_after_s: Span = (0.0, 0.3)
    breaks: float = 0.0
    slow: float = 0.0
    read_delay_s: Span = (0.0, 0.1)
    ignores: float = 0.0
    ignore_s: Span = (0.1, 2.0)
    sinks: float = 0.0
    broken_sinks: float = 0.0
    poison: float = 0.0
    row_errors: float = 0.0
    priorities: IntSpan = (0, 0)
    salts: int = 0

    def __attrs_post_init__(self) -> None:
        if self.via == "http":
            for name in NOT_OVER_HTTP:
                if getattr(self, name):
                    raise ConfigError(
                        f'a workload via "http" cannot have {name}: the API has no field for it',
                        param=name,
                    )


@attrs.frozen(kw_only=True)
class SimulatedModel:
    """The model that the fake runner pretends to run.

    Attributes:
        step_s: Seconds of a step.
        load_s: Seconds of loading, at the start and after each death.
        tokenize_s: Seconds of tokenizing a text.
        context_len: Longest context.
        steps_in_flight: Steps that the runner holds at once.
        eos_one_in: A token is EOS with this chance, one in so many; 0 is never.
        windows: Attention window of each group of layers; 0 is all of the context.
    """

    step_s: float = 0.01
    load_s: float = 0.05
    tokenize_s: float = 0.02
    context_len: int = 256
    steps_in_flight: int = 1
    eos_one_in: int = 0
    windows: tuple[int, ...] = (0,)


@attrs.frozen(kw_only=True)
class Scenario:
    """What a simulation does and what it proves.

    Attributes:
        name: Short, part of the replay token.
        about: One sentence for people.
        engine: Settings of the engine, as for `open_engine`.
        model: The simulated model.
        workloads: The clients.
        faults: What goes wrong.
        skip_checks: Names of checks that this scenario breaks on purpose.
        horizon_s: Virtual seconds after which a run counts as hung.
    """

    name: str
    about: str = ""
    engine: Mapping[str, object] = attrs.field(factory=dict[str, object])
    model: SimulatedModel = attrs.field(factory=SimulatedModel)
    workloads: tuple[Workload, ...] = (Workload(),)
    faults: tuple[Fault, ...] = ()
    skip_checks: tuple[str, ...] = ()
    horizon_s: float = 3600.0

    def __attrs_post_init__(self) -> None:
        try:
            self.config()
        except (TypeError, TrioletError) as error:
            raise ConfigError(
                f"scenario {self.name}: engine settings: {error}", param="engine"
            ) from error

    def config(self) -> EngineConfig:
        """The configuration of its engine."""
        return EngineConfig.of("fake", **self.engine)


def load_scenario(path: Path) -> Scenario:
    """Read a scenario from a TOML file.

    Raises:
        ConfigError: The file cannot be read, or a key or value in it cannot be used.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}", param="scenario") from error
    data.setdefault("name", path.stem)
    return scenario_of(data, str(path))


def scenario_of(data: Mapping[str, Any], source: str = "scenario") -> Scenario:
    """Build a scenario from what TOML, or a test, gives.

    Args:
        data: Tables as in the file: `workload` and `fault` are arrays of tables.
        source: Where it comes from, for errors.

    Raises:
        ConfigError: A key is unknown or a value has the wrong type; the message says which.
    """
    fields = dict(data)
    for table, field in (("workload", "workloads"), ("fault", "faults")):
        if table in fields:
            fields[field] = fields.pop(table)
    try:
        return _CONVERTER.structure(fields, Scenario)
    except cattrs.BaseValidationError as error:
        reasons = "; ".join(cattrs.transform_error(error, path=source))
        raise ConfigError(reasons, param="scenario") from error


def _structure_fault(data: object, _: type) -> Fault:
    if not isinstance(data, dict) or data.get("kind") not in FAULT_CLASSES:
        given = data.get("kind") if isinstance(data, dict) else data
        raise ValueError(f"kind must be one of {', '.join(sorted(FAULT_CLASSES))}, got {given!r}")
    fields = cast("dict[str, Any]", dict(data))
    return _CONVERTER.structure(fields, FAULT_CLASSES[fields.pop("kind")])


def _strict_number(value: object, wanted: type) -> float | int:
    """TOML says what a number is; cattrs would read "12" and True as numbers too."""
    if isinstance(value, bool) or not isinstance(value, (int, float) if wanted is float else int):
        raise ValueError(f"expected {wanted.__name__}, got {value!r}")
    return wanted(value)  # type: ignore[no-any-return]  # int or float


def _strict_plain(value: object, wanted: type) -> object:
    """The same for text and truth."""
    if not isinstance(value, wanted):
        raise ValueError(f"expected {wanted.__name__}, got {value!r}")
    return value


def _make_converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    converter.register_structure_hook(float, _strict_number)
    converter.register_structure_hook(int, _strict_number)
    converter.register_structure_hook(bool, _strict_plain)
    converter.register_structure_hook(str, _strict_plain)
    converter.register_structure_hook_func(lambda wanted: wanted is object, lambda value, _: value)
    # A base class would be structured as itself: only the table of kinds knows the others.
    converter.register_structure_hook_func(lambda wanted: wanted is Fault, _structure_fault)
    for fault_class in FAULT_CLASSES.values():
        converter.register_structure_hook(
            fault_class,
            make_dict_structure_fn(fault_class, converter, _cattrs_forbid_extra_keys=True),
        )
    return converter


_CONVERTER = _make_converter()
