"""One sampled choice: what the engine answered, read as a message."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ludus_backend.gateway.chat_request import ChatRequest
from ludus_backend.gateway.models import ServedModel

if TYPE_CHECKING:
    from renderers.base import ParsedToolCall, ToolSpec


@dataclass(frozen=True)
class Sample:
    """``exchange``: its id. ``message``: OpenAI's assistant message. ``ids`` and ``logprobs`` as they were sampled."""

    exchange: str
    ids: list[int]
    logprobs: list[float]
    message: dict[str, Any]
    finish_reason: str
    stop_reason: str | int | None
    cached_tokens: int


def read_sample(
    exchange: str, answer: dict[str, Any], request: ChatRequest, model: ServedModel, prompt_ids: list[int]
) -> Sample:
    """Parses text and tool calls from the ids.

    The text ends before the first stop string. ``tool_calls`` needs a whole, well-formed call; where the token limit
    cut the reply the reason stays ``length``, also with a call in it.
    """
    ids: list[int] = answer["ids"]
    message, matched = _message(ids, request, model, prompt_ids)
    stopped_by_id = bool(ids) and ids[-1] in model.stop_ids and answer["finish"] == "stop"
    stop_reason = matched if matched is not None else (ids[-1] if stopped_by_id else None)
    finish = answer["finish"]
    if finish == "stop" and "tool_calls" in message:
        finish = "tool_calls"
    return Sample(exchange, ids, answer["logprobs"], message, finish, stop_reason, answer.get("cachedTokens", 0))


def _message(
    ids: list[int], request: ChatRequest, model: ServedModel, prompt_ids: list[int]
) -> tuple[dict[str, Any], str | None]:
    text, matched = cut_at_stop(plain_text(ids, model), request.stop)
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if model.text_format is not None:
        # Our own format is read from text, so also before a stop string.
        parsed = model.text_format.parse_text(text) if request.parse_tools else None
    else:
        # The families of the package only know how to read ids, whole.
        read, tools = model.renderer.parse_response, cast("list[ToolSpec] | None", request.tools)
        parsed = read(ids, tools=tools, prompt_ids=prompt_ids) if matched is None else None
    if parsed is None:
        return message, matched
    calls = [_tool_call(call) for call in parsed.tool_calls if call.status == "ok"]
    if request.parse_tools or not calls:  # else nobody asked for calls: what looks like one is text
        message["content"] = parsed.content
    if parsed.reasoning_content:
        message["reasoning_content"] = parsed.reasoning_content
    if calls and request.parse_tools:
        message["tool_calls"] = calls
        message["content"] = parsed.content or None
    return message, matched


def _tool_call(call: ParsedToolCall) -> dict[str, Any]:
    arguments = call.arguments
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments or {}, ensure_ascii=False)
    return {
        "id": f"call_{secrets.token_hex(12)}",
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def plain_text(ids: list[int], model: ServedModel) -> str:
    """Everything that was sampled as text, without the stop token at its end."""
    return model.tokenizer.decode(ids[:-1] if ids and ids[-1] in model.stop_ids else ids)


def cut_at_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Text before the stop string that appears first, and which one it was."""
    found = [(text.find(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    position, stop = min(found)
    return text[:position], stop
