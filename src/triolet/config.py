"""Every setting of the engine and the server, and the only reader of `os.environ`.

A setting exists because no value is good for everybody; its default says where it comes from.
Field names are unique over all groups, so that `open_engine(model, max_num_seqs=8)`, the flag
`--max-num-seqs 8`, the variable `TRIOLET_MAX_NUM_SEQS` and the TOML key all mean the same one.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, cast, get_args

import attrs

from triolet.errors import ConfigError, InvalidRequest
from triolet.request import Timeouts
from triolet.sampling_params import SamplingParams
from triolet.setting_types import wrong_setting

SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Sampling parameters for which a model or an operator may set the default."""

DTypeName = Literal["auto", "float32", "bfloat16", "float16"]


@attrs.frozen(kw_only=True)
class ModelConfig:
    """Which model, and how it is loaded.

    Attributes:
        model: Directory, GGUF file, hub id, "demo", "demo-gemma" or "tiny-random".
        revision: Branch, tag or commit of a hub id.
        dtype: Of weights and activations; "auto" takes bfloat16 where the device computes it.
        max_model_len: Longest context in tokens; None takes the model's own.
        chat_template: File or text of a Jinja template that replaces the model's own.
        generation_config: "auto" takes sampling defaults from the model's
            generation_config.json, "none" ignores them.
        override_generation_config: Sampling defaults that win over the model's:
            temperature, top_p, top_k, min_p, repetition_penalty.
        model_implementation: "triolet" is the generic decoder, "transformers" runs
            transformers' own modules on our kernels; "auto" prefers the former.
        quantization: Of the weights, done at load: "w8a8" or "w4a8".
        load_seed: Seed of random weights ("tiny-random").
    """

    model: str = attrs.field(default="demo", kw_only=False)
    revision: str | None = None
    dtype: DTypeName = "auto"
    max_model_len: int | None = None
    chat_template: str | None = None
    generation_config: Literal["auto", "none"] = "auto"
    override_generation_config: dict[str, float] = attrs.field(factory=dict[str, float])
    model_implementation: Literal["auto", "triolet", "transformers"] = "auto"
    quantization: Literal["w8a8", "w4a8"] | None = None
    load_seed: int = 0

    def sampling_defaults(self, generation: Mapping[str, Any]) -> dict[str, Any]:
        """What a request gets that does not set a sampling parameter itself.

        Args:
            generation: The model's own generation_config.json.
        """
        own = {} if self.generation_config == "none" else generation
        merged = {**own, **self.override_generation_config}
        if isinstance(top_k := merged.get("top_k"), float) and top_k.is_integer():
            merged["top_k"] = int(top_k)  # a number is a float in a table of floats
        return {name: merged[name] for name in SAMPLING_DEFAULTS if merged.get(name) is not None}


@attrs.frozen(kw_only=True)
class CacheConfig:
    """The paged KV cache.

    Attributes:
        block_size: Tokens per block: smaller shares more, larger walks less. Attention on AMX
            reads blocks of 32 half again as fast as those of 16.
        kv_cache_memory_bytes: Size in bytes; wins over the two below.
        kv_cache_tokens: Size in tokens of full-attention context.
        kv_cache_fraction: On a CPU, share of the memory that is free after loading. A cache
            larger than `max_num_seqs` contexts of `max_model_len` is cut to that.
        gpu_memory_utilization: On a GPU, share of its memory that the engine may hold: weights,
            what a step needs at most, and for the rest KV cache (0.9 is vLLM's).
        kv_cache_dtype: "auto" is the model's dtype.
        enable_prefix_caching: Reuse the blocks of equal prefixes.
    """

    block_size: int = 32
    kv_cache_memory_bytes: int | None = None
    kv_cache_tokens: int | None = None
    kv_cache_fraction: float = 0.2
    gpu_memory_utilization: float = 0.9
    kv_cache_dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    enable_prefix_caching: bool = True


@attrs.frozen(kw_only=True)
class SchedulerConfig:
    """Who runs when, and how much may wait.

    Attributes:
        max_num_seqs: Sequences in one step.
        max_num_batched_tokens: Tokens in one step: bounds how long a prefill can hold up
            the decodes that run beside it.
        long_prefill_token_threshold: Tokens of one prompt in one step; 0 is no limit.
        scheduling_policy: "fcfs", or "priority": lower `priority` first.
        ageing_seconds: Waiting this long counts as one step of priority, so that every
            admitted request gets its turn.
        max_live_requests: Requests admitted at once, running and waiting; more are refused
            with 429.
        max_queued_tokens: Prompt tokens of requests that wait; more are refused with 429.
        max_preemptions: After this many preemptions a request is not preempted any more.
        stream_buffer_bytes: Text that may wait for a slow consumer of one HTTP stream.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 1024
    long_prefill_token_threshold: int = 0
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    ageing_seconds: float = 10.0
    max_live_requests: int = 1024
    max_queued_tokens: int = 1_000_000
    max_preemptions: int = 16
    stream_buffer_bytes: int = 1 << 20


@attrs.frozen(kw_only=True)
class RunnerConfig:
    """The worker that computes.

    Attributes:
        runner: "thread" lives in this process; "process" can be killed and replaced.
        device: "auto", "cpu", "cuda" or "cuda:N".
        threads: Compute threads on CPU; None takes every core this process may use.
        kernels: "auto" takes the fastest that the device has; "reference" is plain torch.
        batch_invariant: Results do not depend on the rest of the batch.
        enforce_eager: On a GPU, do not capture the decode step in CUDA graphs: starts faster
            and needs less memory, decodes slower.
        step_timeout_s: A step older than this is a hang.
        load_timeout_s: Loading and warm-up longer than this is a hang.
        max_restarts: Restarts of the worker within `restart_window_s`; more is `EngineDead`.
        restart_window_s: See `max_restarts`.
        logits_processors: Import paths "package.module:function", by name.
        grammar_timeout_s: Compiling a grammar longer than this refuses the request.
    """

    runner: Literal["thread", "process"] = "thread"
    device: str = "auto"
    threads: int | None = None
    kernels: Literal["auto", "native", "reference"] = "auto"
    batch_invariant: bool = False
    enforce_eager: bool = False
    step_timeout_s: float = 60.0
    load_timeout_s: float = 900.0
    max_restarts: int = 5
    restart_window_s: float = 300.0
    logits_processors: dict[str, str] = attrs.field(factory=dict[str, str])
    grammar_timeout_s: float = 10.0


@attrs.frozen(kw_only=True)
class LimitConfig:
    """Defaults and maxima of what one request may ask for.

    Attributes:
        timeout_total_s: Default limit of the whole request; None is none.
        timeout_queue_s: Default limit until its first step.
        timeout_first_token_s: Default limit until its first token.
        timeout_max_s: Highest total that a caller may ask for.
        max_logprobs: Highest `logprobs` and `prompt_logprobs`.
        max_prompt_chars: Text longer than this is refused before it is tokenized; None
            derives it from the model's context.
    """

    timeout_total_s: float | None = None
    timeout_queue_s: float | None = None
    timeout_first_token_s: float | None = None
    timeout_max_s: float | None = None
    max_logprobs: int = 20
    max_prompt_chars: int | None = None

    def timeouts(self) -> Timeouts:
        """The defaults as one value."""
        return Timeouts(
            total=self.timeout_total_s,
            queue=self.timeout_queue_s,
            first_token=self.timeout_first_token_s,
        )


@attrs.frozen(kw_only=True)
class EngineConfig:
    """Everything `open_engine` needs. Build it with `EngineConfig.of`."""

    model: ModelConfig = attrs.field(factory=ModelConfig)
    cache: CacheConfig = attrs.field(factory=CacheConfig)
    scheduler: SchedulerConfig = attrs.field(factory=SchedulerConfig)
    runner: RunnerConfig = attrs.field(factory=RunnerConfig)
    limits: LimitConfig = attrs.field(factory=LimitConfig)

    @classmethod
    def of(cls, model: str = "demo", **settings: object) -> Self:
        """Build a config from flat settings: `EngineConfig.of("demo", max_num_seqs=8)`.

        Raises:
            TypeError: A setting has no such name; close names are listed.
            ConfigError: A value is out of range; `param` names the setting.
        """
        groups: dict[str, dict[str, object]] = {}
        owner = setting_owners()
        for name, value in {"model": model, **settings}.items():
            if name not in owner:
                raise TypeError(unknown_setting(name, owner))
            groups.setdefault(owner[name], {})[name] = value
        config = cls(
            **{
                field.name: _group_class(field)(**groups.get(field.name, {}))
                for field in attrs.fields(cls)
            }
        )
        config.check()
        return config

    def check(self) -> None:
        """Raise ConfigError for the first value that is of another type, or out of range."""
        cache, scheduler, runner = self.cache, self.scheduler, self.runner
        for group in (self.model, cache, scheduler, runner, self.limits):
            if wrong := wrong_setting(group):
                name, wanted, got = wrong
                raise ConfigError(f"{name} must be {wanted}, got {got!r}", param=name)
        _require(cache.block_size in (8, 16, 32, 64, 128), "block_size", "8, 16, 32, 64 or 128")
        _require(0 < cache.kv_cache_fraction <= 0.95, "kv_cache_fraction", "in (0, 0.95]")
        _require(0 < cache.gpu_memory_utilization <= 1, "gpu_memory_utilization", "in (0, 1]")
        for name in ("kv_cache_memory_bytes", "kv_cache_tokens"):
            _require(_at_least_1(getattr(cache, name)), name, "positive")
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_live_requests"):
            _require(getattr(scheduler, name) >= 1, name, "at least 1")
        _require(
            scheduler.max_num_batched_tokens >= scheduler.max_num_seqs,
            "max_num_batched_tokens",
            "at least max_num_seqs, so that every running sequence fits in a step",
        )
        _require(scheduler.ageing_seconds > 0, "ageing_seconds", "positive")
        _require(_at_least_1(runner.threads), "threads", "at least 1")
        _require(
            self.model.override_generation_config.keys() <= set(SAMPLING_DEFAULTS),
            "override_generation_config",
            "a table of " + ", ".join(SAMPLING_DEFAULTS),
        )
        try:
            SamplingParams(**self.model.sampling_defaults({}))
        except InvalidRequest as error:
            raise ConfigError(
                f"override_generation_config: {error.message}", param="override_generation_config"
            ) from error
        length = self.model.max_model_len
        _require(
            length is None or length >= 2,
            "max_model_len",
            "at least 2: a prompt token and a new one",
        )
        for name in ("step_timeout_s", "load_timeout_s", "restart_window_s", "grammar_timeout_s"):
            _require(getattr(runner, name) > 0, name, "positive")
        for name in (
            "timeout_total_s",
            "timeout_queue_s",
            "timeout_first_token_s",
            "timeout_max_s",
        ):
            value: float | None = getattr(self.limits, name)
            _require(value is None or value > 0, name, "positive")
        for name in ("max_queued_tokens", "max_preemptions", "long_prefill_token_threshold"):
            _require(getattr(scheduler, name) >= 0, name, "at least 0")
        _require(runner.max_restarts >= 0, "max_restarts", "at least 0")
        _require(self.limits.max_logprobs >= 0, "max_logprobs", "at least 0")


ToolCallParser = Literal["auto", "hermes", "qwen3_coder", "llama3_json", "mistral", "functiongemma"]
"""Notations of tool calls; `triolet.protocol.parsers.formats` reads them."""

ReasoningParser = Literal["auto", "none", "think", "mistral", "deepseek_r1"]
"""Marks of reasoning; "deepseek_r1" is "think" for models that begin inside of it."""


@attrs.frozen(kw_only=True)
class ServerConfig:
    """The HTTP server around an engine.

    Attributes:
        host: Address to listen on; "0.0.0.0" is every network this machine is in.
        port: Port to listen on; 0 takes a free one, which the ready line names.
        uds: Listen on this Unix socket instead of host and port.
        served_model_name: Names the model answers to; none given is its own name.
        api_keys: Keys of which every request must carry one; none given is open to all.
        api_keys_file: File with one key per line, added to `api_keys`.
        cors_allowed_origins: Web origins whose pages may call the API; "*" is any.
        allowed_hosts: Names in the Host header that are answered, without port; none given is
            any. Names of this machine keep pages of other origins out, which DNS rebinding
            would let in.
        root_path: Path that a proxy puts before ours, such as "/llm"; it is taken off where
            the proxy leaves it on.
        response_role: Role of the messages that the model writes.
        shutdown_grace_s: Seconds that running requests may go on after SIGTERM.
        ssl_certfile: PEM file of the certificate chain; serves HTTPS.
        ssl_keyfile: PEM file of its private key.
        max_connections: Open connections; more are answered 503 and closed. Below the usual
            limit of 1024 file descriptors.
        max_body_bytes: Largest request body; more is 413. Holds a prompt of a million ids.
        max_header_bytes: Largest request line and headers; more is 431.
        keep_alive_timeout_s: An idle connection is closed after this; longer than the 60 s
            for which proxies keep theirs, so that the proxy closes first.
        request_timeout_s: Seconds to receive the headers, and again the body; 408 after that.
        write_stall_timeout_s: A client that takes no byte of its answer for this long is gone.
        sse_keep_alive_s: A quiet stream sends a comment this often; 0 sends none.
        direct_sink: Streams are written to the socket without a task switch per token.
        tool_call_parser: How the model writes calls of tools; "auto" asks its chat template.
        reasoning_parser: How the model marks its reasoning; "auto" asks its chat template,
            "none" leaves it in the text.
        vllm_metrics: `/metrics` also shows what vLLM has under vLLM's names.
        log_requests: Log the parameters of each request and the beginning of its prompt.
        log_prompt_chars: How much of it, in characters or token ids.
        otlp_traces_endpoint: URL that takes OTLP traces over HTTP, such as
            "http://localhost:4318/v1/traces"; needs triolet[otel].
    """

    host: str = "127.0.0.1"
    port: int = 8000
    uds: Path | None = None
    served_model_name: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = attrs.field(default=(), repr=False)
    api_keys_file: Path | None = None
    cors_allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    root_path: str = ""
    response_role: str = "assistant"
    shutdown_grace_s: float = 30.0
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    max_connections: int = 1000
    max_body_bytes: int = 8 << 20
    max_header_bytes: int = 64 << 10
    keep_alive_timeout_s: float = 75.0
    request_timeout_s: float = 30.0
    write_stall_timeout_s: float = 30.0
    sse_keep_alive_s: float = 15.0
    direct_sink: bool = True
    tool_call_parser: ToolCallParser = "auto"
    reasoning_parser: ReasoningParser = "auto"
    vllm_metrics: bool = False
    log_requests: bool = False
    log_prompt_chars: int = 200
    otlp_traces_endpoint: str | None = None

    def check(self) -> None:
        """Raise ConfigError for the first value that is out of range."""
        _require(0 <= self.port <= 65535, "port", "in 0..65535")
        for name in ("max_connections", "max_body_bytes"):
            _require(getattr(self, name) >= 1, name, "at least 1")
        _require(self.max_header_bytes >= 1024, "max_header_bytes", "at least 1024")
        for name in ("keep_alive_timeout_s", "request_timeout_s", "write_stall_timeout_s"):
            _require(getattr(self, name) > 0, name, "positive")
        _require(self.sse_keep_alive_s >= 0, "sse_keep_alive_s", "0 or more")
        _require(
            (self.ssl_certfile is None) == (self.ssl_keyfile is None),
            "ssl_keyfile",
            "given together with ssl_certfile",
        )
        _require(self.shutdown_grace_s >= 0, "shutdown_grace_s", "0 or more")
        _require(
            not self.root_path or (self.root_path[0] == "/" and self.root_path[-1] != "/"),
            "root_path",
            'empty, or begin with "/" and not end with one',
        )
        _require(
            all(host and "/" not in host for host in self.allowed_hosts),
            "allowed_hosts",
            "names or addresses, without scheme and path",
        )
        _require(0 < len(self.response_role) <= 64, "response_role", "1..64 characters")
        _require(self.log_prompt_chars >= 0, "log_prompt_chars", "0 or more")
        _require("" not in self.api_keys, "api_keys", "non-empty strings")
        for name, kinds in (
            ("tool_call_parser", ToolCallParser),
            ("reasoning_parser", ReasoningParser),
        ):
            known = get_args(kinds)
            _require(getattr(self, name) in known, name, "one of " + ", ".join(known))
        _require("" not in self.served_model_name, "served_model_name", "non-empty strings")


def _group_class(field: attrs.Attribute[Any]) -> type[Any]:
    """The class of one group of EngineConfig: the factory of its field."""
    return cast("type[Any]", cast("Any", field.default).factory)


def setting_owners() -> dict[str, str]:
    """Name of every flat setting -> name of the group in `EngineConfig` that has it."""
    owners: dict[str, str] = {}
    for group in attrs.fields(EngineConfig):
        for field in attrs.fields(_group_class(group)):
            owners[field.name] = group.name
    return owners


def unknown_setting(name: str, known: Mapping[str, object]) -> str:
    """The message for a setting that does not exist."""
    close = difflib.get_close_matches(name, known, n=3)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return f"triolet has no setting {name!r}{hint}"


def _at_least_1(value: int | None) -> bool:
    return value is None or value >= 1


def _require(condition: bool, param: str, wanted: str) -> None:
    if not condition:
        raise ConfigError(f"{param} must be {wanted}", param=param)


def triolet_variables() -> list[str]:
    """Names of the `TRIOLET_*` variables in the environment."""
    return sorted(name for name in os.environ if name.startswith("TRIOLET_"))


def cache_directory() -> Path:
    """Where converted models are kept: $TRIOLET_CACHE, else $XDG_CACHE_HOME/triolet."""
    if path := os.environ.get("TRIOLET_CACHE"):
        return Path(path)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "triolet"
