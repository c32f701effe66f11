"""POST /tokenize and /detokenize, GET /tokenizer_info."""

from __future__ import annotations

from functools import partial

from triolet.engine.client import PromptOptions
from triolet.errors import InvalidRequest
from triolet.protocol.sampling import CHAT_NAMES, wire_names
from triolet.protocol.tokenization import parse_detokenize_request, parse_tokenize_request
from triolet.server.api.call import Call
from triolet.server.api.chat import prompt_ids
from triolet.server.api.error_response import Response, json_response
from triolet.server.api.job import check_model, report_ignored
from triolet.tokenizer.tokenizer_config import NAMED_TOKENS, read_tokenizer_config


async def tokenize(call: Call) -> Response:
    """Token ids of a text or a chat.

    Raises:
        InvalidRequest: The request is at fault.
    """
    engine = call.services.loaded_engine()
    request, ignored = await call.parse(parse_tokenize_request)
    check_model(call, request.model)
    report_ignored(call, ignored)
    if request.chat is not None:
        with wire_names(CHAT_NAMES):
            token_ids = await prompt_ids(call, engine, request.chat)
    else:
        assert request.prompt is not None, "there is one of the two"
        token_ids = await engine.tokenize(
            request.prompt,
            PromptOptions(add_special_tokens=request.add_special_tokens is not False),
        )
    texts = None
    if request.return_token_strs:
        names = engine.tokenizer
        texts = await call.services.offload.run(
            lambda: [names.token_text(token_id) for token_id in token_ids]
        )
    return json_response(
        {
            "count": len(token_ids),
            "max_model_len": engine.max_model_len,
            "tokens": list(token_ids),
            "token_strs": texts,
        }
    )


async def tokenizer_info(call: Call) -> Response:
    """Special tokens and chat template, for evaluators that render prompts themselves."""
    engine = call.services.loaded_engine()
    facts = engine.facts
    config = await call.services.offload.run(partial(read_tokenizer_config, facts.directory))
    tokens = {name: config.special_tokens.get(name) for name in NAMED_TOKENS}
    return json_response(
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model": call.services.model_names()[0],
            "vocab_size": facts.vocab_size,
            "model_max_length": engine.max_model_len,
            **tokens,
            "eos_token_ids": list(engine.tokenizer.eos_token_ids),
            "chat_template": facts.chat_template or config.templates.get("default"),
        }
    )


async def detokenize(call: Call) -> Response:
    """Text of token ids.

    Raises:
        InvalidRequest: An id is outside the vocabulary.
    """
    engine = call.services.loaded_engine()
    request, ignored = await call.parse(parse_detokenize_request)
    check_model(call, request.model)
    report_ignored(call, ignored)
    size = engine.facts.vocab_size
    for i, token_id in enumerate(request.tokens):
        if token_id >= size:
            raise InvalidRequest(
                f"tokens[{i}] is {token_id}, outside the vocabulary of {size} tokens",
                param=f"tokens[{i}]",
            )
    decode = partial(
        engine.tokenizer.decode,
        list(request.tokens),
        skip_special_tokens=request.skip_special_tokens,
    )
    return json_response({"prompt": await call.services.offload.run(decode)})
