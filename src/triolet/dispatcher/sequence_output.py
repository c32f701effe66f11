"""One output of a request: sampled tokens in, text that is certain out.

Rules. Token ids, text and log-probabilities are one unit: they are released together, at the
edges of tokens. A token is held back only while a character is unfinished or while its text
can still become part of a stop string, and at every kind of end everything held is released.
So the pieces of an output, joined, are the same however its tokens arrived.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from triolet.dispatcher.stop_strings import StopMatch, StopMatcher
from triolet.errors import InternalError
from triolet.messages.scheduler_to_dispatcher import RequestFinished, TokensSampled
from triolet.output import OutputDelta, TokenLogprobs
from triolet.request import FinishReason
from triolet.sampling_params import OutputKind, SamplingParams
from triolet.tokenizer.tokenizer import Detokenizer


@attrs.define
class _Pieces:
    """Tokens of an output, and the text of each; log-probabilities if they were asked for."""

    token_ids: list[int] = attrs.field(factory=list[int])
    texts: list[str] = attrs.field(factory=list[str])
    logprobs: list[TokenLogprobs] = attrs.field(factory=list[TokenLogprobs])

    def split_off(self, num: int) -> _Pieces:
        """Remove the first `num` tokens and return them."""
        first = _Pieces(self.token_ids[:num], self.texts[:num], self.logprobs[:num])
        del self.token_ids[:num], self.texts[:num], self.logprobs[:num]
        return first

    def extend(self, other: _Pieces) -> None:
        """Append tokens."""
        self.token_ids += other.token_ids
        self.texts += other.texts
        self.logprobs += other.logprobs


class SequenceOutput:
    """One of the n outputs of a request.

    Args:
        index: Which of the n.
        detokenizer: Fresh, for an output that follows the request's prompt.
        sampling: The request's.
        prefix: Tokens already emitted elsewhere (a resume): they count, and text that they
            leave unfinished is completed, but nothing of them is released again.

    Attributes:
        num_tokens: Tokens the output has, `prefix` and those held back included.
        finished: Whether its last delta was released.
        ended_by_text: Whether a stop string ended it that the scheduler cannot know of.
    """

    __slots__ = (
        "_complete",
        "_detokenizer",
        "_end",
        "_held",
        "_incoming",
        "_incoming_logprobs",
        "_is_plain",
        "_matcher",
        "_push",
        "_released",
        "_released_text",
        "_sampling",
        "_want_logprobs",
        "ended_by_text",
        "finished",
        "index",
        "num_tokens",
    )

    def __init__(
        self,
        index: int,
        detokenizer: Detokenizer,
        sampling: SamplingParams,
        prefix: Sequence[int] = (),
    ) -> None:
        self.index = index
        self.num_tokens = 0
        self.finished = False
        self.ended_by_text = False
        self._sampling = sampling
        self._detokenizer = detokenizer
        self._push = detokenizer.push
        self._matcher = StopMatcher(sampling.stop) if sampling.stop else None
        self._want_logprobs = sampling.logprobs is not None
        self._is_plain = not self._want_logprobs and sampling.output_kind is OutputKind.DELTA
        self._incoming: list[int] = []
        self._incoming_logprobs: list[TokenLogprobs] = []
        self._end: RequestFinished | None = None
        self._held = _Pieces()
        self._complete = 0  # how many of the held tokens have all of their text
        self._released = _Pieces()  # kept, with its text, only where later deltas repeat it
        self._released_text = ""
        for token_id in prefix:
            self._prime(token_id)

    def receive(self, fact: TokensSampled) -> None:
        """Take more sampled tokens; nothing is decoded before `release`.

        Raises:
            InternalError: Log-probabilities were asked for and do not match the tokens.
        """
        self._incoming += fact.token_ids
        if self._want_logprobs:
            if fact.logprobs is None or len(fact.logprobs) != len(fact.token_ids):
                raise InternalError(
                    f"output {self.index} got {len(fact.token_ids)} tokens with "
                    f"{fact.logprobs and len(fact.logprobs)} log-probabilities"
                )
            self._incoming_logprobs += fact.logprobs

    def end(self, fact: RequestFinished) -> None:
        """Take note that the output ended in tokens, at a position not yet released.

        Raises:
            InternalError: The position is not among the tokens received since the last
                release: they were sent too late, or text behind the end is out already.
        """
        if not 0 <= fact.num_output_tokens - self.num_tokens <= len(self._incoming):
            raise InternalError(
                f"output {self.index} ended at {fact.num_output_tokens} tokens, but "
                f"{self.num_tokens} were decoded and {len(self._incoming)} are waiting"
            )
        self._end = fact

    def conclude(self, reason: FinishReason) -> OutputDelta:
        """End the output where it is, unless an end is known already; the last delta."""
        if self._end is not None:
            return self._release_end(self._end)
        stopped = self._decode(0)
        return self._stop(stopped) if stopped else self._finish(reason, None, self._text())

    def drain(self) -> OutputDelta | None:
        """Everything received so far, with an end only if one is known: the request fails."""
        if self._end is not None:
            return self._release_end(self._end)
        stopped = self._decode(0)
        if stopped:
            return self._stop(stopped)
        if not self._held.token_ids or self._sampling.output_kind is OutputKind.FINAL_ONLY:
            return None
        return self._take(len(self._held.token_ids), self._text())

    def release(self) -> OutputDelta | None:
        """Decode what was received; the next delta, None if nothing is certain yet."""
        if self._end is not None:
            return self._release_end(self._end)
        if self._is_plain and len(self._incoming) == 1 and not self._held.token_ids:
            return self._release_plain()
        stopped = self._advance(len(self._incoming))
        if stopped:
            return self._stop(stopped)
        num_certain = self._num_certain()
        if not num_certain or self._sampling.output_kind is OutputKind.FINAL_ONLY:
            return None
        return self._take(num_certain, "".join(self._held.texts[:num_certain]))

    def _release_end(self, end: RequestFinished) -> OutputDelta:
        """The last delta of an output that ended in tokens, or by a stop string before that."""
        num_inside = end.num_output_tokens - self.num_tokens
        del self._incoming[num_inside:], self._incoming_logprobs[num_inside:]
        stopped = self._decode(1 if end.drop_stop_token and self._incoming else 0)
        if stopped:
            return self._stop(stopped)
        return self._finish(end.reason, end.stop_reason, self._text())

    def _prime(self, token_id: int) -> None:
        """Count a token that was emitted elsewhere, and its text."""
        self.num_tokens += 1
        text = self._push(token_id)
        if self._matcher is not None:
            self._matcher.feed(text, armed=False)

    def _release_plain(self) -> OutputDelta | None:
        """`release` for what nearly every step is: one token, nothing held, no end."""
        (token_id,) = self._incoming
        self._incoming.clear()
        self.num_tokens += 1
        text = self._push(token_id)
        stopped = self._match(text)
        unfinished = self._detokenizer.unfinished
        if not (stopped or unfinished or (self._matcher and self._matcher.num_chars_held)):
            return OutputDelta(self.index, text, (token_id,))
        self._held.token_ids.append(token_id)
        self._held.texts.append(text)
        self._complete = 0 if unfinished else 1
        return self._stop(stopped) if stopped else None

    def _decode(self, num_dropped: int) -> StopMatch | None:
        """Decode all that is left up to an end; the text of the last ones may be dropped."""
        stopped = self._advance(len(self._incoming) - num_dropped)
        if stopped:
            return stopped
        tail = self._detokenizer.flush()
        held = self._held
        if tail and held.texts:  # without a token of ours, the tail is that of the prefix
            held.texts[-1] += tail
            stopped = self._match(tail)
            if stopped:
                return stopped
        self.num_tokens += len(self._incoming)
        # The dropped token of an end counts, and is reported, but has no text.
        held.texts += [""] * len(self._incoming)
        held.token_ids += self._incoming
        held.logprobs += self._incoming_logprobs
        self._incoming.clear()
        self._incoming_logprobs.clear()
        return None

    def _advance(self, num: int) -> StopMatch | None:
        """Decode the first `num` received tokens, or up to one that completes a stop string."""
        held = self._held
        stopped: StopMatch | None = None
        taken = 0
        for token_id in self._incoming[:num]:
            taken += 1
            self.num_tokens += 1
            text = self._push(token_id)
            held.token_ids.append(token_id)
            held.texts.append(text)
            if not self._detokenizer.unfinished:
                self._complete = len(held.token_ids)
            if stopped := self._match(text):
                break
        held.logprobs += self._incoming_logprobs[:taken]
        del self._incoming[:taken]
        del self._incoming_logprobs[:taken]
        return stopped

    def _match(self, text: str) -> StopMatch | None:
        if self._matcher is None or not text:
            return None
        return self._matcher.feed(text, armed=self.num_tokens > self._sampling.min_tokens)

    def _num_certain(self) -> int:
        """How many held tokens can be released: whole, and before a possible stop string."""
        num = self._complete
        if self._matcher is None or not self._matcher.num_chars_held:
            return num
        texts = self._held.texts
        num_chars = self._matcher.num_chars_held
        while num and num_chars > 0:
            num -= 1
            num_chars -= len(texts[num])
        # Tokens of a character come out with the one that completes it, which stays.
        while num and not texts[num - 1]:
            num -= 1
        return num

    def _text(self) -> str:
        return "".join(self._held.texts)

    def _stop(self, match: StopMatch) -> OutputDelta:
        """The last delta of an output that a stop string ended."""
        text = self._text()
        cut = match.num_chars_after
        if not self._sampling.include_stop_str_in_output:
            cut += len(match.stop)
        self.ended_by_text = self._end is None
        # A stop string can begin in a prefix, whose text is out of reach: cut no further.
        return self._finish(FinishReason.STOP, match.stop, text[: max(len(text) - cut, 0)])

    def _finish(
        self, reason: FinishReason, stop_reason: str | int | None, text: str
    ) -> OutputDelta:
        assert not self.finished, f"output {self.index} ended twice"
        self.finished = True
        self._incoming.clear()  # void: they are behind the end
        self._incoming_logprobs.clear()
        return self._take(len(self._held.token_ids), text, reason, stop_reason)

    def _take(
        self,
        num: int,
        text: str,
        reason: FinishReason | None = None,
        stop_reason: str | int | None = None,
    ) -> OutputDelta:
        """Turn the first `num` held tokens, whose text is `text`, into a delta."""
        pieces = self._held.split_off(num)
        self._complete = max(self._complete - num, 0)
        if self._sampling.output_kind is OutputKind.CUMULATIVE:
            self._released.extend(pieces)
            pieces = self._released
            text = self._released_text = self._released_text + text
        return OutputDelta(
            index=self.index,
            text=text,
            token_ids=tuple(pieces.token_ids),
            logprobs=tuple(pieces.logprobs) if self._want_logprobs else None,
            finish_reason=reason,
            stop_reason=stop_reason,
            token_texts=tuple(pieces.texts) if self._want_logprobs else None,
        )
