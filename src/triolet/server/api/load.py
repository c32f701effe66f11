"""How loaded a server is: `/load`, and the header that routers ask for.

The header is vLLM's (`endpoint-load-metrics`), which follows ORCA, the load reports of the
xDS load balancers: https://github.com/cncf/xds/blob/main/xds/data/orca/v3/orca_load_report.proto
"""

from __future__ import annotations

from triolet.engine.client import EngineClient
from triolet.protocol import sse
from triolet.server.api.call import Call
from triolet.server.api.error_response import Headers

GENERATING_PATHS = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"}
)


def server_load(call: Call) -> int:
    """Generating HTTP requests in progress."""
    return call.services.live.count(GENERATING_PATHS)


def load_headers(call: Call, engine: EngineClient) -> Headers:
    """The load report, if the request asks for one in a format there is."""
    wanted = call.exchange.headers.get("endpoint-load-metrics-format", "").strip().lower()
    if wanted not in ("text", "json"):
        return ()
    now = engine.statistics()
    metrics = {
        "kv_cache_usage_perc": round(now.blocks_used / max(1, now.blocks_total), 6),
        "num_requests_waiting": now.requests_waiting,
    }
    if wanted == "json":
        value = b"JSON " + sse.dump({"named_metrics": metrics})
    else:
        pairs = (f"named_metrics.{name}={number}" for name, number in metrics.items())
        value = f"TEXT {','.join(pairs)}".encode()
    return ((b"endpoint-load-metrics", value),)
