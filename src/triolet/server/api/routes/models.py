"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from triolet.errors import ModelNotFound
from triolet.protocol.json_body import clip
from triolet.protocol.tokenization import anthropic_model_card, model_card
from triolet.server.api.call import Call
from triolet.server.api.error_response import Response, json_response


async def list_models(call: Call) -> Response:
    """Every name of the model, in the shape of the client's API."""
    if call.exchange.is_anthropic:
        cards = [_anthropic_card(call, name) for name in call.services.model_names()]
        page = {"first_id": cards[0]["id"], "last_id": cards[-1]["id"], "has_more": False}
        return json_response({"data": cards, **page})
    cards = [_card(call, name) for name in call.services.model_names()]
    return json_response({"object": "list", "data": cards})


async def retrieve_model(call: Call) -> Response:
    """One name of the model; names may contain slashes.

    Raises:
        ModelNotFound: The model has no such name.
    """
    name = call.variables["model"]
    names = call.services.model_names()
    if name not in names:
        raise ModelNotFound(
            f"the model {clip(name)} is not served; served: {', '.join(names)}", param="model"
        )
    if call.exchange.is_anthropic:
        return json_response(_anthropic_card(call, name))
    return json_response(_card(call, name))


def _card(call: Call, name: str) -> dict[str, object]:
    engine = call.services.loaded_engine()
    return model_card(name, call.services.created, engine.facts.name, engine.max_model_len)


def _anthropic_card(call: Call, name: str) -> dict[str, object]:
    engine = call.services.loaded_engine()
    return anthropic_model_card(name, call.services.created, engine.max_model_len)
