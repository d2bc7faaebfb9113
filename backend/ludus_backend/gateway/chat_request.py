"""A chat-completion body becomes sampling options, or a typed error that names the field."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import ValidationError

from ludus_backend.errors import LudusError
from ludus_backend.gateway.http_errors import invalid_fields
from ludus_backend.protocol import ChatCompletionRequest, LudusRequest

_MOST_STOPS = 16
_SEED_RANGE = 1 << 62
_LOWEST_TEMPERATURE = 1e-3
"""Below it logits divided by the temperature leave the range where fp32 still tells probabilities apart."""


@dataclass(frozen=True)
class ChatRequest:
    """What a request asks for, with every default filled in. ``seeds``: one per choice."""

    model: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    parse_tools: bool
    temperature: float
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seeds: list[int]
    stop: list[str]
    max_tokens: int | None
    ignore_eos: bool
    logprobs: bool
    stream: bool
    include_usage: bool
    ludus: LudusRequest


def read_chat_request(body: bytes) -> ChatRequest:
    """Errors: ``invalid_request`` with the first offending field."""
    sent, asked = _validated(body)
    ludus = asked.ludus or LudusRequest()
    if ludus.train:
        _refuse_bent_distributions(asked)
    _refuse_what_is_not_there(asked)
    _refuse_almost_zero(asked.temperature)
    seed = asked.seed
    count = asked.n or 1
    return ChatRequest(
        model=asked.model,
        messages=[plain_message(message.model_dump(exclude_none=True)) for message in asked.messages],
        tools=sent["tools"] if asked.tools else None,
        parse_tools=bool(asked.tools) and asked.tool_choice != "none",
        temperature=1.0 if asked.temperature is None else asked.temperature,
        top_p=asked.top_p if asked.top_p is not None and asked.top_p < 1 else None,
        top_k=asked.top_k if asked.top_k is not None and asked.top_k > 0 else None,
        min_p=asked.min_p or None,
        seeds=[secrets.randbelow(_SEED_RANGE) if seed is None else seed + i for i in range(count)],
        stop=_stops(asked.stop),
        max_tokens=_max_tokens(asked),
        ignore_eos=bool(asked.ignore_eos),
        logprobs=bool(asked.logprobs) or ludus.train,
        stream=bool(asked.stream),
        include_usage=asked.stream_options is not None and asked.stream_options.include_usage,
        ludus=ludus,
    )


def _validated(body: bytes) -> tuple[dict[str, Any], ChatCompletionRequest]:
    """The body as it was sent (tools are rendered with their keys in that order) and as it was understood."""
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
        if rb"\ud" in body or rb"\uD" in body:
            value = _well_formed(value)
        return value, ChatCompletionRequest.model_validate(value)
    except ValidationError as error:
        raise invalid_fields(error.errors()) from None
    except (ValueError, RecursionError) as error:
        raise LudusError(
            "invalid_request", f"The body is not JSON: {error}", expected="a JSON object", field="body"
        ) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _well_formed(value: Any) -> Any:
    """Lone surrogates (half an emoji, cut by somebody's truncation) become U+FFFD: no tokenizer could take them."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_well_formed(item) for item in value]
    if isinstance(value, dict):
        return {_well_formed(key): _well_formed(item) for key, item in value.items()}
    return value


def plain_message(message: dict[str, Any]) -> dict[str, Any]:
    """Text content as one string (missing and null: empty), ``developer`` as the system role it stands for."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content)
    role = "system" if message["role"] == "developer" else message["role"]
    return {**message, "role": role, "content": content}


def _stops(stop: str | list[str] | None) -> list[str]:
    stops = [stop] if isinstance(stop, str) else list(stop or [])
    if len(stops) > _MOST_STOPS or "" in stops:
        raise LudusError(
            "invalid_request",
            "These stop strings cannot be used",
            field="stop",
            value=stops,
            expected=f"at most {_MOST_STOPS} strings, none of them empty",
        )
    return stops


def _max_tokens(asked: ChatCompletionRequest) -> int | None:
    name = "max_tokens" if asked.max_completion_tokens is None else "max_completion_tokens"
    limit = asked.max_tokens if asked.max_completion_tokens is None else asked.max_completion_tokens
    if limit is not None and limit < 1:
        raise LudusError(
            "invalid_request",
            f"{name} must be at least 1, got {limit}",
            field=name,
            value=limit,
            expected="a whole number of tokens, at least 1",
        )
    return limit


def _refuse_what_is_not_there(asked: ChatCompletionRequest) -> None:
    """Options of OpenAI's API that would change the reply and that this backend does not have."""
    kind = (asked.response_format or {"type": "text"}).get("type")
    unsupported = {
        "tool_choice": asked.tool_choice not in (None, "auto", "none"),
        "response_format": kind != "text",
        "top_logprobs": bool(asked.top_logprobs),
        "parallel_tool_calls": asked.parallel_tool_calls is False,
        "presence_penalty": bool(asked.presence_penalty),
        "frequency_penalty": bool(asked.frequency_penalty),
        "logit_bias": bool(asked.logit_bias),
    }
    for name, found in unsupported.items():
        if found:
            raise LudusError(
                "invalid_request",
                f"{name} is not supported yet with this value",
                field=name,
                value=getattr(asked, name),
                expected=_SUPPORTED.get(name, "nothing, or its neutral value"),
            )


def _refuse_almost_zero(temperature: float | None) -> None:
    if temperature and temperature < _LOWEST_TEMPERATURE:
        raise LudusError(
            "invalid_request",
            "The temperature is too close to 0 to be one",
            field="temperature",
            value=temperature,
            expected=f"0, or {_LOWEST_TEMPERATURE:g} to 2",
            advice="use 0: it takes the likeliest token",
        )


_SUPPORTED = {"tool_choice": "'auto' or 'none'", "response_format": "{'type': 'text'}", "parallel_tool_calls": "true"}


def _refuse_bent_distributions(asked: ChatCompletionRequest) -> None:
    """A trained exchange must be sampled from the very distribution whose log-probabilities are recorded."""
    bent = {
        "top_p": asked.top_p is not None and asked.top_p < 1,
        "top_k": asked.top_k is not None and asked.top_k > 0,
        "min_p": bool(asked.min_p),
        "presence_penalty": bool(asked.presence_penalty),
        "frequency_penalty": bool(asked.frequency_penalty),
        "logit_bias": bool(asked.logit_bias),
        "temperature": asked.temperature == 0,
    }
    for name, found in bent.items():
        if found:
            raise LudusError(
                "invalid_request",
                f"{name} cuts or bends the distribution of a reply that will be trained",
                field=name,
                value=getattr(asked, name),
                expected="a temperature above 0" if name == "temperature" else "nothing, or its neutral value",
                advice="leave it out, or send ludus.train: false where the reply is not trained",
            )
