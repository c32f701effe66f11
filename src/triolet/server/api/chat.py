"""A chat request to what the engine runs, for every protocol that asks for one.

Everything that depends on the model's own way of writing is decided here: how tools get into
the prompt, what grammar forces a call, and how the outputs are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import attrs

from triolet.engine.client import EngineClient, Prompt, PromptOptions
from triolet.protocol.chat_request import ChatCompletionRequest
from triolet.protocol.output_reader import Reading
from triolet.protocol.parsers.dialect import Dialect
from triolet.protocol.parsers.formats import FORMATS
from triolet.protocol.parsers.output_parser import ParserSettings
from triolet.protocol.tool_grammar import (
    begun_call_grammar,
    call_grammar,
    forced_format,
    grammar_after_reasoning,
)
from triolet.protocol.tool_prompt import with_calls_written, with_tools_stated
from triolet.protocol.tools import ToolUse
from triolet.sampling_params import SamplingParams, StructuredOutputs
from triolet.server.api.call import Call
from triolet.server.api.dialect import ModelDialect, model_dialect
from triolet.server.api.job import prompt_options


@attrs.frozen
class ChatPlan:
    """What a chat request comes to.

    Attributes:
        prompt: Messages for the engine to render, or their ids.
        options: How to render them.
        sampling: With the grammar that a forced call needs.
        reading: How outputs are read; None leaves their text alone.
        ignored: Fields that have no effect with this model.
        names: Field of the constraint -> field of the chat that it was made of, for errors.
    """

    prompt: Prompt
    options: PromptOptions
    sampling: SamplingParams
    reading: Reading | None
    ignored: tuple[str, ...] = ()
    names: Mapping[str, str] = attrs.field(factory=dict[str, str])


async def dialect_of_model(call: Call, engine: EngineClient) -> ModelDialect:
    """The model's dialect, found out at the first request. A checkpoint the first time."""
    services = call.services
    if services.dialect is None:
        find = partial(model_dialect, engine.tokenizer, services.config)
        services.dialect = await services.offload.run(find)
    return services.dialect


async def chat_plan(
    call: Call, engine: EngineClient, request: ChatCompletionRequest, sampling: SamplingParams
) -> ChatPlan:
    """Decide how a chat is run and read. A checkpoint.

    Raises:
        InvalidRequest: The template refuses the chat, or a constraint cannot be combined.
    """
    dialect = await dialect_of_model(call, engine)
    tools = request.tool_use
    kwargs, ignored = _template_kwargs(request, dialect)
    prompt, options, is_open = await _prompt(call, engine, request, tools, kwargs, dialect)
    own = dialect.dialect
    if not tools.tools and own.reasoning is None:
        return ChatPlan(prompt, options, sampling, None, ignored)
    call_format = own.call_format
    if _writes_grammar(tools, sampling.structured_outputs):
        # The grammar decides how a call is written, so that is what is read.
        call_format = forced_format(call_format, tools.callable_tools)
    parser = ParserSettings(
        reasoning=own.reasoning,
        reasoning_open=is_open,
        calls=FORMATS[call_format] if tools.tools else None,
        tools=tools.schemas,
        parallel=tools.parallel,
    )
    reading = Reading(
        parser=parser,
        named=tools.only is not None,
        include_reasoning=request.include_reasoning,
        reasoning_end_id=(
            None if own.reasoning is None else dialect.marker_ids.get(own.reasoning.end)
        ),
        short_ids=own.call_format == "mistral",
    )
    structured = _constraint(sampling.structured_outputs, tools, dialect, parser, call_format)
    return ChatPlan(
        prompt,
        options,
        attrs.evolve(
            sampling,
            structured_outputs=structured,
            skip_special_tokens=sampling.skip_special_tokens and not _is_special(parser, dialect),
        ),
        reading,
        ignored,
        # What is no grammar of the client's own was made of its tools or its schema.
        {"structured_outputs.grammar": "tools" if tools.tools else "structured_outputs.json"},
    )


async def count_prompt(call: Call, engine: EngineClient, request: ChatCompletionRequest) -> int:
    """Tokens of a chat's prompt, tools included. A checkpoint.

    Raises:
        InvalidRequest: The template refuses the chat.
    """
    return len(await prompt_ids(call, engine, request))


async def prompt_ids(
    call: Call, engine: EngineClient, request: ChatCompletionRequest
) -> tuple[int, ...]:
    """Token ids of a chat's prompt, tools included. A checkpoint.

    Raises:
        InvalidRequest: The template refuses the chat.
    """
    dialect = await dialect_of_model(call, engine)
    kwargs, _ = _template_kwargs(request, dialect)
    prompt, options, _ = await _prompt(call, engine, request, request.tool_use, kwargs, dialect)
    return await engine.tokenize(prompt, options)


async def _prompt(
    call: Call,
    engine: EngineClient,
    request: ChatCompletionRequest,
    tools: ToolUse,
    kwargs: Mapping[str, object],
    dialect: ModelDialect,
) -> tuple[Prompt, PromptOptions, bool]:
    """The prompt, how to render it, and whether it ends inside of reasoning."""
    own = dialect.dialect
    messages = await call.compute(partial(_messages, request, tools, own))
    options = attrs.evolve(
        prompt_options(request),
        tools=tools.for_template if own.states_tools else None,
        documents=request.documents,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        template_kwargs=kwargs or None,
    )
    if own.reasoning is None:
        return messages, options, False
    # Only its end tells whether it ends inside of reasoning, and grammars depend on that.
    token_ids = await engine.tokenize(messages, options)
    return token_ids, PromptOptions(), dialect.reasoning_open(engine.tokenizer, token_ids)


def _messages(
    request: ChatCompletionRequest, tools: ToolUse, own: Dialect
) -> tuple[dict[str, object], ...]:
    """The messages as the model's template takes them, tools and calls included if it cannot."""
    messages = request.template_messages
    if not own.writes_calls:
        messages = with_calls_written(messages)
    if not own.states_tools:
        messages = with_tools_stated(messages, tools.tools)
    return messages


def _template_kwargs(
    request: ChatCompletionRequest, dialect: ModelDialect
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Switches of the template, `reasoning_effort` among them if it has one for it."""
    kwargs = dict(request.chat_template_kwargs or {})
    effort = request.reasoning_effort
    if effort is None:
        return kwargs, ()
    own = dialect.dialect
    if own.has_effort_switch:
        kwargs.setdefault("reasoning_effort", effort)
    elif own.has_thinking_switch:
        kwargs.setdefault("enable_thinking", effort != "none")
    else:
        return kwargs, ("reasoning_effort",)
    return kwargs, ()


def _constraint(
    structured: StructuredOutputs | None,
    tools: ToolUse,
    dialect: ModelDialect,
    parser: ParserSettings,
    call_format: str,
) -> StructuredOutputs | None:
    """What the whole text of the answer must follow, reasoning and calls included."""
    if _writes_grammar(tools, structured):
        return call_grammar(
            call_format,
            tools.callable_tools,
            parallel=tools.parallel,
            marker=dialect.marker,
            reasoning=parser.reasoning,
            reasoning_open=parser.reasoning_open,
            otherwise=None if tools.must_call else structured,
        )
    if structured is None and tools.is_strict:
        return begun_call_grammar(
            call_format,
            tools.tools,
            parallel=tools.parallel,
            marker=dialect.marker,
            reasoning=parser.reasoning,
            reasoning_open=parser.reasoning_open,
        )
    if structured is not None and parser.reasoning is not None:
        return grammar_after_reasoning(
            structured,
            parser.reasoning,
            reasoning_open=parser.reasoning_open,
            marker=dialect.marker,
        )
    return structured


def _writes_grammar(tools: ToolUse, structured: StructuredOutputs | None) -> bool:
    """Whether a grammar spells every call: it is demanded, or the answer is constrained."""
    return tools.must_call or (bool(tools.tools) and structured is not None)


def _is_special(parser: ParserSettings, dialect: ModelDialect) -> bool:
    """Whether a marker is a special token, so that special tokens must stay in the text."""
    markers: set[str] = set()
    if parser.reasoning is not None:
        markers |= {parser.reasoning.begin, parser.reasoning.end}
    if parser.calls is not None:
        markers |= set(parser.calls.BEGINS)
    return bool(markers & dialect.special)
