"""The Hermes text form of tools: how they are announced, called and answered inside a ChatML conversation.

The wording is the one of Qwen2.5's chat template, byte for byte: a model that was trained on tools was trained on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from renderers.base import ParsedToolCall, ToolCallParseStatus

OPEN = "<tool_call>"
CLOSE = "</tool_call>"

_BEFORE_TOOLS = (
    "\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_AFTER_TOOLS = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


def tools_text(tools: Sequence[Mapping[str, Any]]) -> str:
    """What follows the system text where the model has tools."""
    return _BEFORE_TOOLS + "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools) + _AFTER_TOOLS


def call_text(name: str, arguments: str | Mapping[str, Any]) -> str:
    """One call; ``arguments`` that are already JSON text go in byte for byte."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'{OPEN}\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {text or "{}"}}}\n{CLOSE}'


def parse_calls(text: str) -> tuple[str, list[ParsedToolCall]]:
    """Splits a reply into its text and its calls, in order.

    The text is everything outside well-formed calls, without white space at the seams; a call that does not parse stays
    in the text as it was sampled and is also listed with its status, so that a policy's mistake is neither dropped nor
    taken for an action. A call without ``arguments`` is a call with none.
    """
    kept: list[str] = []
    calls: list[ParsedToolCall] = []
    rest = text
    while True:
        before, opened, after = rest.partition(OPEN)
        if not opened:
            kept.append(rest)
            break
        kept.append(before)
        body, closed, rest = after.partition(CLOSE)
        raw = opened + body + closed
        call = _parse_call(raw, body) if closed else ParsedToolCall(raw, status=ToolCallParseStatus.UNCLOSED_BLOCK)
        calls.append(call)
        if call.status is not ToolCallParseStatus.OK:
            kept.append(raw)
    if not any(call.status is ToolCallParseStatus.OK for call in calls):
        return text, calls
    leading, *others = kept
    parts = [leading.rstrip(), *(part.strip() for part in others)]
    return "\n".join(part for part in parts if part), calls


def _parse_call(raw: str, body: str) -> ParsedToolCall:
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return ParsedToolCall(raw, status=ToolCallParseStatus.INVALID_JSON)
    if not isinstance(value, dict):
        return ParsedToolCall(raw, status=ToolCallParseStatus.MALFORMED_STRUCTURE)
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return ParsedToolCall(raw, status=ToolCallParseStatus.MISSING_NAME)
    arguments = value.get("arguments", {})
    if not isinstance(arguments, (dict, str)):
        return ParsedToolCall(raw, name=name, status=ToolCallParseStatus.MALFORMED_STRUCTURE)
    return ParsedToolCall(raw, name=name, arguments=arguments)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
