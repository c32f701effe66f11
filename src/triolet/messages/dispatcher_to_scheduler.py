"""Dispatcher to scheduler. Bound: live requests, each output ends at most once here."""

from __future__ import annotations

import attrs

from triolet.request import RequestId


@attrs.frozen
class StopMatched:
    """A stop string ended this output after `num_output_tokens` tokens; later ones are void."""

    request_id: RequestId
    index: int
    num_output_tokens: int


@attrs.frozen
class SinkFailed:
    """The consumer of this request raised: end the request."""

    request_id: RequestId
