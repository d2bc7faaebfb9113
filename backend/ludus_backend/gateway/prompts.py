"""A request's messages become prompt ids: extending what was sampled where that is possible, rendered afresh else."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any, Literal

from ludus_backend.errors import LudusError
from ludus_backend.gateway.chat_request import ChatRequest
from ludus_backend.gateway.conversations import history_chain, prefix_hash
from ludus_backend.gateway.episodes import EpisodeState
from ludus_backend.gateway.models import ServedModel

Rendered = Literal["first", "bridged", "unscoped", "forked"]
"""How the prompt was made, as ``protocol.LudusReply`` tells it."""


@dataclass(frozen=True)
class Prompt:
    """Ids to sample from, and where they belong. ``chain``: hashes of the request's histories (conversations)."""

    ids: list[int]
    prefix_hash: str
    parent: str | None
    rendered: Rendered
    chain: list[bytes]


def make_prompt(request: ChatRequest, model: ServedModel, episode: EpisodeState | None) -> Prompt:
    """Errors: ``context_length_exceeded`` where prompt and asked-for tokens do not fit."""
    _check_text(request, model)
    chain = history_chain(model.info.name, request.tools, request.messages)
    prompt = _bridged(request, model, episode, chain) if episode is not None else None
    if prompt is None:
        ids = model.renderer.render_ids(request.messages, tools=request.tools, add_generation_prompt=True)
        if episode is None:
            rendered: Rendered = "unscoped"
        else:
            rendered = "forked" if any(message["role"] == "assistant" for message in request.messages) else "first"
        prompt = Prompt(ids, prefix_hash(ids), None, rendered, chain)
    _check_length(len(prompt.ids), request.max_tokens, model.info.context_length)
    return prompt


def _bridged(request: ChatRequest, model: ServedModel, episode: EpisodeState, chain: list[bytes]) -> Prompt | None:
    match = episode.conversations.find(chain, request.messages, request.ludus.parent)
    if match is None:
        return None
    before = match.exchange
    bridge = model.renderer.bridge_to_next_turn(
        before.prompt_ids.tolist(), before.sampled_ids.tolist(), list(match.new_messages), tools=request.tools
    )
    if bridge is None or not _extends(bridge.token_ids, before.prompt_ids + before.sampled_ids):
        return None
    ids = bridge.token_ids
    return Prompt(ids, prefix_hash(ids), before.id, "bridged", chain)


def _extends(ids: list[int], prefix: array[int]) -> bool:
    """Families may trim what follows a turn's close; only an untouched prefix is a continuation."""
    return ids[: len(prefix)] == prefix.tolist()


def _check_text(request: ChatRequest, model: ServedModel) -> None:
    """Refuses what cannot fit before it is encoded: that holds up everybody else for a second per megabyte."""
    characters = sum(len(message["content"]) for message in request.messages)
    fewest = characters // model.tokenizer.longest_token
    if fewest > model.info.context_length:
        raise _too_long(model.info.context_length, fewest, 1, "at least ")


def _check_length(prompt: int, asked: int | None, context: int) -> None:
    sampled = 1 if asked is None else asked
    if prompt + sampled > context:
        raise _too_long(context, prompt, sampled)


def _too_long(context: int, prompt: int, sampled: int, bound: str = "") -> LudusError:
    return LudusError(
        "context_length_exceeded",
        f"This model's maximum context length is {context} tokens, but {bound}{prompt + sampled} were requested "
        f"({prompt} in the messages, {sampled} to sample)",
        field="messages",
        value=f"{prompt} prompt tokens",
        expected=f"prompt and max_tokens together at most {context} tokens",
        advice="end the episode, shorten the history, or ask for fewer tokens",
    )


def sampling_fields(request: ChatRequest, model: ServedModel, prompt: Prompt) -> dict[str, Any]:
    """What every choice of the request asks of the engine; policy, episode and seed are added to it."""
    room = model.info.context_length - len(prompt.ids)
    return {
        "promptIds": prompt.ids,
        "maxTokens": room if request.max_tokens is None else request.max_tokens,
        "temperature": request.temperature,
        "topP": request.top_p,
        "topK": request.top_k,
        "minP": request.min_p,
        "stopIds": model.stop_ids,
        "stop": request.stop,
        "ignoreEos": request.ignore_eos,
        "stream": request.stream,
    }
