"""A generation as server-sent events: ids and log-probabilities of the plain reply in pieces, with certain text."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from ludus_backend.errors import LudusError
from ludus_backend.gateway.chat_reply import ReplyHead, choice_logprobs, usage
from ludus_backend.gateway.detokenize import TextStream
from ludus_backend.gateway.event_stream import event
from ludus_backend.gateway.generation import Generation
from ludus_backend.gateway.http_errors import error_detail
from ludus_backend.gateway.sample import Sample

DONE = b"data: [DONE]\n\n"


class _Choice:
    """What has been sent of one choice."""

    def __init__(self, head: ReplyHead, index: int) -> None:
        generation = head.generation
        request, model = generation.request, generation.model
        self._text: TextStream | None = None
        # The package's families separate reasoning and text only in a whole reply: their text comes last.
        if model.text_format is not None:
            markers = [*request.stop, *([model.text_format.call_marker] if request.parse_tools else [])]
            self._text = TextStream(model.tokenizer, markers, model.stop_ids)
        self._head, self._index, self._sent_ids = head, index, 0

    def opening(self) -> dict[str, Any]:
        return self._piece({"role": "assistant", "content": ""}, [], [], ludus=True)

    def tokens(self, ids: list[int], logprobs: list[float]) -> dict[str, Any]:
        self._sent_ids += len(ids)
        return self._piece({"content": self._text.feed(ids) if self._text else ""}, ids, logprobs)

    def closing(self, sample: Sample) -> dict[str, Any]:
        """The rest: ids that no event brought, text that was held back, tool calls, and why it ended."""
        content = sample.message["content"] or ""
        delta: dict[str, Any] = {"content": self._text.finish(content) if self._text else content}
        if "reasoning_content" in sample.message:
            delta["reasoning_content"] = sample.message["reasoning_content"]
        if "tool_calls" in sample.message:
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(sample.message["tool_calls"])]
        ids, logprobs = sample.ids[self._sent_ids :], sample.logprobs[self._sent_ids :]
        piece = self._piece(delta, ids, logprobs, ludus=True)
        return {**piece, "finish_reason": sample.finish_reason, "stop_reason": sample.stop_reason}

    def _piece(
        self, delta: dict[str, Any], ids: list[int], logprobs: list[float], *, ludus: bool = False
    ) -> dict[str, Any]:
        generation = self._head.generation
        return {
            "index": self._index,
            "delta": delta,
            "finish_reason": None,
            "logprobs": choice_logprobs(generation, ids, logprobs) if ids else None,
            "token_ids": ids,
            **({"ludus": self._head.ludus(self._index)} if ludus else {}),
        }


async def stream_chunks(generation: Generation) -> AsyncIterator[bytes]:
    """Server-sent events up to ``[DONE]``. A repeat of a running request begins with everything sampled so far.

    Errors before the first token are raised; later ones become an ``error`` event, after which the stream ends.
    """
    head = ReplyHead(generation)
    choices = [_Choice(head, index) for index in range(len(generation.exchanges))]
    seen = 0
    if not await generation.more(seen):
        await generation.result()
    yield event(
        head.chunk(
            [choice.opening() for choice in choices], prompt_token_ids=generation.prompt.ids, ludus=head.ludus(0)
        )
    )
    while await generation.more(seen):
        tokens = generation.tokens[seen]
        seen += 1
        yield event(head.chunk([choices[tokens.index].tokens(tokens.ids, tokens.logprobs)]))
    try:
        samples = await generation.result()
    except LudusError as error:
        yield event({"error": error_detail(error)})
        return
    yield event(head.chunk([choice.closing(sample) for choice, sample in zip(choices, samples, strict=True)]))
    if generation.request.include_usage:
        yield event(head.chunk([], usage=usage(generation, samples)))
    yield DONE
