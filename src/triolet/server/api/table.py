"""Which path is answered by which route."""

from __future__ import annotations

import re

import attrs

from triolet.server.api.call import Route
from triolet.server.api.routes import (
    generate,
    messages,
    models,
    operations,
    render,
    responses,
    tokenize,
)


@attrs.frozen
class Endpoint:
    """One path with its methods.

    Attributes:
        path: The exact path, or a pattern with one `{name}`.
        methods: Method -> route.
    """

    path: str
    methods: dict[str, Route]

    def match(self, path: str) -> dict[str, str] | None:
        """Variables of a path that fits, else None."""
        if "{" not in self.path:
            return {} if path == self.path else None
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.{1,256})", re.escape(self.path))
        match = re.fullmatch(pattern, path)
        return None if match is None else match.groupdict()


ENDPOINTS = (
    Endpoint("/v1/chat/completions", {"POST": generate.chat_completions}),
    Endpoint("/v1/chat/completions/render", {"POST": render.render_chat}),
    Endpoint("/v1/completions", {"POST": generate.completions}),
    Endpoint("/v1/completions/render", {"POST": render.render_completion}),
    Endpoint("/v1/messages", {"POST": messages.create_message}),
    Endpoint("/v1/messages/count_tokens", {"POST": messages.count_tokens}),
    Endpoint("/v1/responses", {"POST": responses.create_response}),
    Endpoint("/v1/responses/input_tokens", {"POST": responses.count_input_tokens}),
    Endpoint("/v1/responses/{response_id}/cancel", {"POST": responses.cancel_response}),
    Endpoint("/v1/responses/{response_id}/input_items", {"GET": responses.list_input_items}),
    Endpoint(
        "/v1/responses/{response_id}",
        {"GET": responses.get_response, "DELETE": responses.delete_response},
    ),
    Endpoint("/v1/models", {"GET": models.list_models}),
    Endpoint("/v1/models/{model}", {"GET": models.retrieve_model}),
    Endpoint("/v1/requests/{request_id}/cancel", {"POST": operations.cancel_request}),
    Endpoint("/tokenize", {"POST": tokenize.tokenize}),
    Endpoint("/detokenize", {"POST": tokenize.detokenize}),
    Endpoint("/tokenizer_info", {"GET": tokenize.tokenizer_info}),
    Endpoint("/load", {"GET": operations.load}),
    Endpoint("/health", {"GET": operations.health}),
    Endpoint("/ready", {"GET": operations.ready}),
    Endpoint("/ping", {"GET": operations.health, "POST": operations.health}),
    Endpoint("/version", {"GET": operations.version}),
    Endpoint("/metrics", {"GET": operations.metrics}),
    Endpoint("/debug/tree", {"GET": operations.debug_tree}),
)

BODILESS = frozenset(
    {"/ping", "/v1/requests/{request_id}/cancel", "/v1/responses/{response_id}/cancel"}
)
"""Paths whose POST takes no body."""


def find(path: str) -> tuple[Endpoint, dict[str, str]] | None:
    """The endpoint of a path and the variables in it, or None."""
    for endpoint in ENDPOINTS:
        variables = endpoint.match(path)
        if variables is not None:
            return endpoint, variables
    return None
