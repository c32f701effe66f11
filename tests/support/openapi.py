"""Writes src/triolet/server/static/api/openapi.json from the routes and the protocol's classes.

Run it after changing a route or a request's field: python tests/support/openapi.py
"""

from __future__ import annotations

import inspect
import json
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from pydantic import TypeAdapter

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))

from support import answer_shapes as shapes  # noqa: E402  found by the line above
from triolet.protocol.anthropic_fields import CountTokensRequest, MessagesRequest  # noqa: E402
from triolet.protocol.chat_request import ChatCompletionRequest  # noqa: E402
from triolet.protocol.completion_request import CompletionRequest  # noqa: E402
from triolet.protocol.fields import Range  # noqa: E402
from triolet.protocol.responses_fields import ResponsesRequest  # noqa: E402
from triolet.protocol.tokenization import DetokenizeRequest, TokenizeRequest  # noqa: E402
from triolet.sampling_params import BAD_WORDS_MAX, N_MAX, STOP_STRINGS_MAX  # noqa: E402
from triolet.server.api.gate import PUBLIC_PATHS  # noqa: E402
from triolet.server.api.table import ENDPOINTS  # noqa: E402

FILE = ROOT / "src/triolet/server/static/api/openapi.json"
Schema = dict[str, Any]


@attrs.frozen
class Described:
    """What a route takes and gives.

    Attributes:
        answer: The shape of a 200.
        request: The class of its body.
        event: The shape of one event, where the answer can be streamed.
    """

    answer: type
    request: type | None = None
    event: type | None = None


ROUTES: Mapping[tuple[str, str], Described] = {
    ("/v1/chat/completions", "POST"): Described(
        shapes.ChatCompletion, ChatCompletionRequest, shapes.ChatCompletionChunk
    ),
    ("/v1/chat/completions/render", "POST"): Described(shapes.RenderedChat, ChatCompletionRequest),
    ("/v1/completions", "POST"): Described(shapes.Completion, CompletionRequest, shapes.Completion),
    ("/v1/completions/render", "POST"): Described(shapes.RenderedCompletion, CompletionRequest),
    ("/v1/messages", "POST"): Described(shapes.MessageObject, MessagesRequest, dict),
    ("/v1/messages/count_tokens", "POST"): Described(shapes.TokenCount, CountTokensRequest),
    ("/v1/responses", "POST"): Described(shapes.ResponseFields, ResponsesRequest, dict),
    ("/v1/responses/input_tokens", "POST"): Described(shapes.InputTokens, ResponsesRequest),
    ("/v1/responses/{response_id}", "GET"): Described(shapes.ResponseFields, event=dict),
    ("/v1/responses/{response_id}", "DELETE"): Described(shapes.DeletedResponse),
    ("/v1/responses/{response_id}/cancel", "POST"): Described(shapes.ResponseFields),
    ("/v1/responses/{response_id}/input_items", "GET"): Described(shapes.InputItems),
    ("/v1/models", "GET"): Described(shapes.ModelList),
    ("/v1/models/{model}", "GET"): Described(shapes.Model),
    ("/v1/requests/{request_id}/cancel", "POST"): Described(shapes.Cancelled),
    ("/tokenize", "POST"): Described(shapes.Tokenized, TokenizeRequest),
    ("/detokenize", "POST"): Described(shapes.Detokenized, DetokenizeRequest),
    ("/tokenizer_info", "GET"): Described(shapes.TokenizerInfo),
    ("/load", "GET"): Described(shapes.Load),
    ("/health", "GET"): Described(shapes.Status),
    ("/ready", "GET"): Described(shapes.Status),
    ("/ping", "GET"): Described(shapes.Status),
    ("/ping", "POST"): Described(shapes.Status),
    ("/version", "GET"): Described(shapes.Version),
    ("/metrics", "GET"): Described(str),
    ("/debug/tree", "GET"): Described(shapes.Tree),
}
"""A route that is not listed here is described as far as the routing table goes."""

LIMITS: Mapping[str, Schema] = {
    "n": {"minimum": 1, "maximum": N_MAX},
    "temperature": {"minimum": 0, "maximum": 2},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "top_k": {"minimum": -1},
    "min_p": {"minimum": 0, "maximum": 1},
    "presence_penalty": {"minimum": -2, "maximum": 2},
    "frequency_penalty": {"minimum": -2, "maximum": 2},
    "repetition_penalty": {"exclusiveMinimum": 0, "maximum": 100},
    "min_tokens": {"minimum": 0},
    "stop": {"maxItems": STOP_STRINGS_MAX},
    "bad_words": {"maxItems": BAD_WORDS_MAX},
    "allowed_token_ids": {"minItems": 1},
    "messages": {"minItems": 1},
    "prompt": {"minItems": 1, "minLength": 1},
}
"""What `SamplingParams` and the parsers check, by field."""


def document() -> Schema:
    """The whole OpenAPI document."""
    refs, schemas = _schemas()
    paths: Schema = {}
    for endpoint in ENDPOINTS:
        for method, route in sorted(endpoint.methods.items()):
            described = ROUTES.get((endpoint.path, method), Described(dict))
            operation = _operation(endpoint.path, method, route, described, refs)
            paths.setdefault(endpoint.path, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "triolet",
            "version": "1",
            "description": "OpenAI's and Anthropic's APIs over one engine. Unknown fields are "
            "accepted and listed in X-Triolet-Ignored.",
        },
        "servers": [{"url": "./"}],
        "security": [{"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def page() -> str:
    """The file."""
    return json.dumps(document(), indent=1, sort_keys=False) + "\n"


def _operation(
    path: str, method: str, route: object, described: Described, refs: Mapping[type, Schema]
) -> Schema:
    error = shapes.AnthropicError if path.startswith("/v1/messages") else shapes.Error
    kind = "text/plain" if described.answer is str else "application/json"
    content: Schema = {kind: {"schema": refs.get(described.answer, {"type": "object"})}}
    if described.answer is str:
        content[kind]["schema"] = {"type": "string"}
    if described.event is not None:
        event = refs.get(described.event, {"type": "object"})
        # One event; `itemSchema` is what OpenAPI 3.2 calls it, which 3.1 lets pass.
        content["text/event-stream"] = {"schema": {"type": "string"}, "x-event-schema": event}
    failure = {
        "description": "It failed.",
        "content": {"application/json": {"schema": refs[error]}},
    }
    if path in ("/health", "/ready", "/ping"):
        failure["content"] = content
    operation: Schema = {
        "operationId": f"{method.lower()}_{re.sub(r'[^a-z0-9]+', '_', path).strip('_')}",
        "summary": (inspect.getdoc(route) or "").partition("\n")[0],
        "responses": {"200": {"description": "It worked.", "content": content}, "default": failure},
    }
    names = re.findall(r"\{(\w+)\}", path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    if described.request is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": refs[described.request]}},
        }
    if path in PUBLIC_PATHS:
        operation["security"] = []
    return operation


def _schemas() -> tuple[dict[type, Schema], Schema]:
    """Reference to each class, and every schema that is needed."""
    setattr(Range, "__get_pydantic_json_schema__", _range_schema)  # noqa: B010  pydantic's hook
    requests = {d.request for d in ROUTES.values() if d.request is not None}
    answers = {shapes.Error, shapes.AnthropicError}
    for described in ROUTES.values():
        answers |= {c for c in (described.answer, described.event) if c not in (None, str, dict)}
    refs, schemas = _json_schemas(requests)
    for schema in schemas.values():
        _as_the_converter_takes_it(schema)
    more_refs, more_schemas = _json_schemas(answers)
    assert not schemas.keys() & more_schemas.keys(), "a request and an answer share a name"
    everything = {**schemas, **more_schemas}
    for schema in everything.values():
        _without_noise(schema)
    return {**refs, **more_refs}, dict(sorted(everything.items()))


def _json_schemas(classes: set[type]) -> tuple[dict[type, Schema], Schema]:
    ordered = sorted(classes, key=lambda cls: cls.__name__)
    by_key, definitions = TypeAdapter.json_schemas(
        [(cls, "validation", TypeAdapter(cls)) for cls in ordered],
        ref_template="#/components/schemas/{model}",
    )
    return {cls: by_key[cls, "validation"] for cls in ordered}, definitions["$defs"]


def _range_schema(bounds: Range, core_schema: Any, handler: Any) -> Schema:  # noqa: ANN401  pydantic's
    schema: Schema = dict(handler(core_schema))
    if not math.isinf(bounds.low):
        schema["minimum"] = bounds.low
    if not math.isinf(bounds.high):
        schema["maximum"] = bounds.high
    return schema


_BOUNDS = ("minimum", "exclusiveMinimum", "maximum")
_LIMIT_WORDS = {
    "integer": _BOUNDS,
    "number": _BOUNDS,
    "array": ("minItems", "maxItems"),
    "string": ("minLength",),
}


def _as_the_converter_takes_it(schema: Schema) -> None:
    """Null means absent; the ranges of sampling parameters are checked behind the converter."""
    for name, value in schema.get("properties", {}).items():
        if name in LIMITS:
            for branch in value.get("anyOf", [value]):
                words = _LIMIT_WORDS.get(branch.get("type"), ())
                branch |= {word: LIMITS[name][word] for word in words if word in LIMITS[name]}
        if name in schema.get("required", ()) or {"type": "null"} in value.get("anyOf", ()):
            continue
        plain = {key: value.pop(key) for key in list(value) if key not in ("default", "title")}
        branches = plain.pop("anyOf", None) or [plain]
        value["anyOf"] = [*branches, {"type": "null"}]


def _without_noise(value: Any) -> None:  # noqa: ANN401  any JSON
    """Leave out titles, which repeat names, and defaults of null."""
    if isinstance(value, list):
        for item in value:
            _without_noise(item)
    elif isinstance(value, dict):
        if isinstance(value.get("title"), str):
            del value["title"]
        if value.get("default", 0) is None:
            del value["default"]
        for item in value.values():
            _without_noise(item)


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(page(), encoding="utf-8")
