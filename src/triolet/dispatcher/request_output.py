"""The outputs of one request, and its accounts."""

from __future__ import annotations

from triolet.dispatcher.sequence_output import SequenceOutput
from triolet.errors import InternalError
from triolet.output import Sink, Usage
from triolet.request import GenerationRequest
from triolet.tokenizer.tokenizer import Tokenizer


class RequestOutput:
    """A request as the dispatcher knows it, until it is finished, failed or closed.

    Args:
        request: Its prompt, sampling and prefix.
        sink: Where its outputs go.
        tokenizer: Makes the detokenizers.

    Attributes:
        cached_tokens: Prompt tokens that were in the prefix cache.
        started: Whether it had its first place in a step.
        closed: Whether nothing more is delivered.
        touched: Outputs that received something since the last release, each once.
    """

    __slots__ = (
        "_outputs",
        "_tokenizer",
        "cached_tokens",
        "closed",
        "request",
        "sink",
        "started",
        "touched",
    )

    def __init__(self, request: GenerationRequest, sink: Sink, tokenizer: Tokenizer) -> None:
        self.request = request
        self.sink = sink
        self.cached_tokens = 0
        self.started = False
        self.closed = False
        self.touched: dict[int, SequenceOutput] = {}
        self._tokenizer = tokenizer
        self._outputs: dict[int, SequenceOutput] = {}
        if request.prefix:
            self.output(0)  # its tokens count even if no more are sampled

    def output(self, index: int) -> SequenceOutput:
        """One of the n outputs; made when it is first spoken of.

        Raises:
            InternalError: There is no such output.
        """
        output = self._outputs.get(index)
        if output is None:
            sampling = self.request.sampling
            if not 0 <= index < sampling.n:
                raise InternalError(f"output {index} of a request with n={sampling.n}")
            output = SequenceOutput(
                index,
                self._tokenizer.detokenizer(
                    self.request.prompt_token_ids,
                    skip_special_tokens=sampling.skip_special_tokens,
                ),
                sampling,
                self.request.prefix if index == 0 else (),
            )
            self._outputs[index] = output
        return output

    @property
    def all_finished(self) -> bool:
        """Whether every one of the n outputs has ended."""
        return len(self._outputs) == self.request.sampling.n and all(
            output.finished for output in self._outputs.values()
        )

    def unfinished(self) -> list[SequenceOutput]:
        """Outputs that have not ended, in the order of their numbers."""
        outputs = (self.output(index) for index in range(self.request.sampling.n))
        return [output for output in outputs if not output.finished]

    @property
    def usage(self) -> Usage:
        """Tokens used so far."""
        return Usage(
            prompt_tokens=self.request.num_prompt_tokens,
            completion_tokens=sum(output.num_tokens for output in self._outputs.values()),
            cached_tokens=self.cached_tokens,
        )
