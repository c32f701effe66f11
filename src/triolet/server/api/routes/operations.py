"""Health, version, metrics, the tree, and cancelling a request by its id."""

from __future__ import annotations

import attrs

import triolet
from triolet.engine.client import Health
from triolet.errors import Rejected
from triolet.protocol.json_body import clip
from triolet.server.api.call import Call
from triolet.server.api.error_response import Response, json_response
from triolet.server.api.load import server_load
from triolet.telemetry.metrics import with_vllm_names

METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

RED = frozenset({Health.DEAD, Health.STUCK})
"""States that only a restart cures: `/health` is red."""


class RequestNotFound(Rejected):
    """No request of that id is in progress, or it is somebody else's."""

    code = "request_not_found"
    http_status = 404


async def health(call: Call) -> Response:
    """Whether the process is worth keeping: 503 when the engine is dead or stuck."""
    state = call.services.health()
    return json_response({"status": state.value}, 503 if state in RED else 200)


async def ready(call: Call) -> Response:
    """Whether to send requests here: 200 only while serving."""
    state = call.services.health()
    return json_response({"status": state.value}, 200 if state is Health.SERVING else 503)


async def version(call: Call) -> Response:
    """Version of triolet."""
    return json_response({"version": triolet.__version__})


async def metrics(call: Call) -> Response:
    """Prometheus text exposition of the engine and of the HTTP server."""
    services = call.services
    own = services.loaded_engine().metrics()
    if services.config.vllm_metrics:
        own = with_vllm_names(own)
    return Response(200, own + services.http_metrics.exposition(), METRICS_TYPE)


async def load(call: Call) -> Response:
    """Generating requests in progress, as vLLM's routers ask for it."""
    return json_response({"server_load": server_load(call)})


async def debug_tree(call: Call) -> Response:
    """The actor tree, the connections and the requests, as they are now."""
    services = call.services
    engine = services.engine
    return json_response(
        {
            "health": services.health().value,
            "engine": None if engine is None else attrs.asdict(engine.statistics()),
            "server": {} if services.tree is None else services.tree(),
            "requests": services.live.tree(),
            "responses": services.responses.statistics(),
        }
    )


async def cancel_request(call: Call) -> Response:
    """End a request by the id of its answer, with or without the prefix.

    Raises:
        RequestNotFound: The caller has no such request.
    """
    request_id = call.variables["request_id"]
    own_id = request_id.replace("_", "-").rpartition("-")[2]
    if not call.services.live.cancel(own_id, call.caller.tenant):
        raise RequestNotFound(f"no request {clip(request_id)} is in progress", param="request_id")
    return json_response({"id": request_id, "object": "request", "cancelled": True})
