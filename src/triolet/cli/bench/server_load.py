"""Which server `triolet bench serve` asks, and how."""

from __future__ import annotations

import json
from typing import Any

import attrs

from triolet.cli.bench.http_client import Endpoint
from triolet.errors import ConfigError

CLOSED_LOOP_CONCURRENCY = 16
"""Unless told otherwise: enough to batch, few enough for a small machine."""


@attrs.frozen(kw_only=True)
class ServerLoad:
    """Which server is asked, and how.

    Attributes:
        url: Of the server, with or without /v1.
        served_model: Name of the model in requests; the first that the server lists if none.
        tokenizer: Model directory, hub id or "demo": prompts have exact lengths by its
            tokenizer; without one, about a token per word.
        token_ids: Send prompts as token ids instead of text; needs `tokenizer`.
        endpoint: "completions", or "chat" with the prompt as the user's message.
        concurrency: Requests open at once: 16 in a closed loop, no limit in an open one, if
            not given.
        rate: Open loop: requests per second, Poisson; not given is a closed loop.
        warmup: Requests before the first repetition that are not measured.
        timeout_s: A request that takes longer has failed.
        key: Sent as a bearer token.
        extra_body: JSON object with more fields for every request.
        server_pid: Process of a server on this machine, for its CPU time.
    """

    url: str = "http://127.0.0.1:8000"
    served_model: str | None = None
    tokenizer: str | None = None
    token_ids: bool = False
    endpoint: Endpoint = "completions"
    concurrency: int | None = None
    rate: float | None = None
    warmup: int = 1
    timeout_s: float = 600.0
    key: str | None = attrs.field(default=None, repr=False)
    extra_body: str = "{}"
    server_pid: int | None = None

    def check(self) -> None:
        """Raise ConfigError for the first value that makes no sense."""
        for name in ("concurrency", "rate", "timeout_s"):
            value: float | None = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"{name} must be positive, got {value:g}", param=name)
        if self.warmup < 0:
            raise ConfigError(f"warmup must be 0 or more, got {self.warmup}", param="warmup")
        if self.token_ids and self.tokenizer is None:
            raise ConfigError("token_ids needs a tokenizer to make them", param="token_ids")
        if self.token_ids and self.endpoint == "chat":
            raise ConfigError("a chat message is text, not token ids", param="token_ids")
        self.extra_fields()

    def extra_fields(self) -> dict[str, Any]:
        """The fields of `extra_body`.

        Raises:
            ConfigError: It is no JSON object.
        """
        try:
            fields = json.loads(self.extra_body)
        except json.JSONDecodeError as error:
            raise ConfigError(f"extra_body is not JSON: {error}", param="extra_body") from error
        if not isinstance(fields, dict):
            raise ConfigError("extra_body must be a JSON object", param="extra_body")
        return fields
