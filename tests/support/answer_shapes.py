"""What answers look like on the wire: for openapi.json, and to check real answers against.

Objects are closed: a field that an answer has and its shape has not is an error of either.
"""

from typing import Any, Literal, NotRequired

from pydantic import ConfigDict
from typing_extensions import TypedDict


class Shape(TypedDict):
    """An object with these fields and no others."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]  # pydantic's own protocol


class ErrorFields(Shape):
    message: str
    type: str
    param: str | None
    code: str


class Error(Shape):
    """Every failure, as a body or as an event of a stream that has begun."""

    error: ErrorFields


class AnthropicErrorFields(Shape):
    type: str
    message: str
    param: NotRequired[str | None]
    code: NotRequired[str]


class AnthropicError(Shape):
    """Every failure under /v1/messages."""

    type: Literal["error"]
    error: AnthropicErrorFields
    request_id: NotRequired[str | None]


class PromptTokensDetails(Shape):
    cached_tokens: int


class CompletionTokensDetails(Shape):
    reasoning_tokens: int


class UsageFields(Shape):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: NotRequired[CompletionTokensDetails]


class TokenLogprob(Shape):
    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(Shape):
    content: list[ContentLogprob]


class CalledFunction(Shape):
    name: str
    arguments: str


class ToolCallFields(Shape):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessageFields(Shape):
    role: str
    content: str | None
    refusal: None
    reasoning: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallFields]]


FinishReasonName = Literal["stop", "length", "tool_calls", "abort"]


class ChatChoice(Shape):
    index: int
    message: ChatMessageFields
    logprobs: ChatLogprobs | None
    finish_reason: FinishReasonName
    stop_reason: str | int | None
    token_ids: NotRequired[list[int]]


class PromptLogprob(Shape):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class ChatCompletion(Shape):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageFields
    service_tier: None
    system_fingerprint: None
    prompt_logprobs: NotRequired[PromptLogprobs]
    prompt_token_ids: NotRequired[list[int]]


class CalledFunctionDelta(Shape):
    name: NotRequired[str]
    arguments: NotRequired[str]


class ToolCallDelta(Shape):
    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: CalledFunctionDelta


class ChatDelta(Shape):
    role: NotRequired[str]
    content: NotRequired[str]
    reasoning: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallDelta]]


class ChatChunkChoice(Shape):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReasonName | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]


class ChatCompletionChunk(Shape):
    """One event of a stream; the last one before [DONE] may have only the usage."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[UsageFields]
    prompt_token_ids: NotRequired[list[int]]


class CompletionLogprobArrays(Shape):
    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(Shape):
    index: int
    text: str
    logprobs: CompletionLogprobArrays | None
    finish_reason: FinishReasonName | None
    stop_reason: NotRequired[str | int | None]
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[PromptLogprobs | None]


class Completion(Shape):
    """A whole answer, or one event of a stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: NotRequired[UsageFields]
    service_tier: NotRequired[None]
    system_fingerprint: NotRequired[None]


class RenderedChat(Shape):
    """A chat as the model would read it."""

    object: Literal["chat.completion.render"]
    model: str
    max_model_len: int
    prompt: str
    prompt_token_ids: list[int]
    count: int


class RenderedPrompt(Shape):
    index: int
    prompt: str
    prompt_token_ids: list[int]
    count: int


class RenderedCompletion(Shape):
    """Prompts as the model would read them."""

    object: Literal["text_completion.render"]
    model: str
    max_model_len: int
    prompts: list[RenderedPrompt]


class Model(Shape):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int


class ModelList(Shape):
    object: Literal["list"]
    data: list[Model]


class Tokenized(Shape):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(Shape):
    prompt: str


class TokenizerInfo(Shape):
    tokenizer_class: str
    model: str
    vocab_size: int
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    unk_token: str | None
    sep_token: str | None
    pad_token: str | None
    cls_token: str | None
    mask_token: str | None
    eos_token_ids: list[int]
    chat_template: str | None


class Load(Shape):
    server_load: int


class Status(Shape):
    status: Literal["starting", "serving", "draining", "stuck", "dead"]


class Version(Shape):
    version: str


class Cancelled(Shape):
    id: str
    object: Literal["request"]
    cancelled: bool


class TokenCount(Shape):
    input_tokens: int


class MessageObject(TypedDict):
    """Anthropic's message; streamed, its events."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: dict[str, Any]


class ResponseFields(TypedDict):
    """OpenAI's response; streamed, its events."""

    id: str
    object: Literal["response"]
    status: str
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None


class InputTokens(Shape):
    object: Literal["response.input_tokens"]
    input_tokens: int


class DeletedResponse(Shape):
    id: str
    object: Literal["response"]
    deleted: bool


class InputItems(Shape):
    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Tree(TypedDict):
    """Actors, channels, connections and requests; for people, its fields may change."""

    health: str
    engine: dict[str, Any] | None
    server: dict[str, Any]
    requests: list[dict[str, Any]]
