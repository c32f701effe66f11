"""Every exception triolet raises, by who caused it and who must act.

* `ConfigError`: the operator asked for something that cannot be; nothing was started.
* `Rejected`: the request was not admitted; nothing of it exists. The caller must change it
  (`InvalidRequest`) or come back later (`QueueFull`, `NotServing`).
* `RequestFailed`: the request was admitted and then failed alone. Other requests go on.
* `EngineDead`: the engine cannot serve any more; every waiter gets it, once.
* `InternalError`: a bug in triolet. Please report it.

An error carries an HTTP status as a hint (`http_status`); `server/api/error_response.py` is
the one place that turns errors into bodies.
"""

from __future__ import annotations


class TrioletError(Exception):
    """Root of every exception that triolet raises.

    Attributes:
        message: One sentence for a person: what was wrong, where, and what would be right.
        code: Stable machine-readable name of the fault.
        param: Path of the request field or name of the option at fault, if one is.
        http_status: Status the HTTP server answers with.
        retryable: Whether repeating the same request later can succeed.
        retry_after_s: Seconds to wait before repeating it, where that is known.
    """

    code = "internal_error"
    http_status = 500
    retryable = False

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        if code is not None:
            self.code = code


class ConfigError(TrioletError):
    """The operator's configuration cannot be used. Fix the option named in `param`."""

    code = "config_error"


class Rejected(TrioletError):
    """The request was not admitted: nothing of it was done and nothing of it remains."""

    code = "rejected"
    http_status = 400


class InvalidRequest(Rejected):
    """The caller sent something that can never succeed. Change the field named in `param`."""

    code = "invalid_value"


class PromptTooLong(InvalidRequest):
    """The prompt can never fit the model's context or the KV cache."""

    code = "context_length_exceeded"


class ModelNotFound(Rejected):
    """No model of that name is served."""

    code = "model_not_found"
    http_status = 404


class QueueFull(Rejected):
    """The engine holds as much work as its limits allow. Come back after `retry_after_s`."""

    code = "queue_full"
    http_status = 429
    retryable = True


class NotServing(Rejected):
    """The engine is starting, draining or closed. Come back later or go elsewhere."""

    code = "not_serving"
    http_status = 503
    retryable = True


class RequestFailed(TrioletError):
    """An admitted request failed; no other request is affected."""

    code = "request_failed"


class DeadlineExceeded(RequestFailed):
    """A deadline of the request passed before its first token.

    After the first token a passed deadline is no error: the output ends with
    `FinishReason.TIMEOUT`.
    """

    code = "deadline_exceeded"
    http_status = 504


class ClientStalled(RequestFailed):
    """The HTTP client stopped reading its answer for longer than the stall limit."""

    code = "client_stalled"
    http_status = 408


class RequestCancelled(RequestFailed):
    """Somebody with the right to do so cancelled the request by its id."""

    code = "request_cancelled"
    http_status = 499  # nginx's "client closed request": no standard status says it


class PoisonRequest(RequestFailed):
    """The request alone brings the model runner down. Repeating it would do it again."""

    code = "poison_request"


class EngineDead(TrioletError):
    """The engine cannot go on; `__cause__` says why. The process should be restarted."""

    code = "engine_dead"
    http_status = 503
    retryable = True


class RunnerStuck(TrioletError):
    """A worker thread did not end in time. A thread cannot be killed: restart the process."""

    code = "runner_stuck"


class InternalError(TrioletError):
    """A bug in triolet."""
