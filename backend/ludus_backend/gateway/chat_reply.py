"""Samples become OpenAI's reply or its stream of chunks, in vLLM's shape with ids, plus ``ludus``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ludus_backend.gateway.generation import Generation
from ludus_backend.gateway.sample import Sample
from ludus_backend.rendering.tokenizer import FastTokenizer


@dataclass(frozen=True)
class ReplyHead:
    """What a reply and all chunks of a stream share."""

    generation: Generation

    def ludus(self, index: int) -> dict[str, Any]:
        """``LudusReply`` of choice ``index``."""
        prompt = self.generation.prompt
        return {
            "exchange": self.generation.exchanges[index],
            "parent": prompt.parent,
            "policy": self.generation.policy,
            "prefixHash": prompt.prefix_hash,
            "rendered": prompt.rendered,
        }

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": self.generation.reply_id,
            "object": "chat.completion.chunk",
            "created": self.generation.created,
            "model": self.generation.policy,
            "choices": choices,
            **more,
        }


def completion_body(head: ReplyHead, samples: Sequence[Sample]) -> dict[str, Any]:
    """The whole reply, as plain JSON values (``protocol.ChatCompletion``)."""
    generation = head.generation
    return {
        "id": generation.reply_id,
        "object": "chat.completion",
        "created": generation.created,
        "model": generation.policy,
        "choices": [
            {
                "index": index,
                "message": sample.message,
                "finish_reason": sample.finish_reason,
                "stop_reason": sample.stop_reason,
                "logprobs": choice_logprobs(generation, sample.ids, sample.logprobs),
                "token_ids": sample.ids,
                "ludus": head.ludus(index),
            }
            for index, sample in enumerate(samples)
        ],
        "usage": usage(generation, samples),
        "prompt_token_ids": generation.prompt.ids,
        "ludus": head.ludus(0),
    }


def usage(generation: Generation, samples: Sequence[Sample]) -> dict[str, Any]:
    """Counts of ids, all choices together; the prompt is counted once, as OpenAI and vLLM do."""
    prompt = len(generation.prompt.ids)
    sampled = sum(len(sample.ids) for sample in samples)
    cached = max((sample.cached_tokens for sample in samples), default=0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def choice_logprobs(generation: Generation, ids: Sequence[int], logprobs: Sequence[float]) -> dict[str, Any] | None:
    """One entry per id; None where the request did not ask for them."""
    if not generation.request.logprobs:
        return None
    tokenizer = generation.model.tokenizer
    return {
        "content": [
            {"token": token, "logprob": logprob, "bytes": exact, "top_logprobs": []}
            for logprob, (token, exact) in zip(logprobs, (_shown(tokenizer, i) for i in ids), strict=True)
        ]
    }


@lru_cache(maxsize=65_536)
def _shown(tokenizer: FastTokenizer, token_id: int) -> tuple[str, list[int]]:
    """A token as text (U+FFFD where it is a part of a character) and as exact bytes."""
    exact = tokenizer.token_bytes(token_id)
    return exact.decode("utf-8", "replace"), list(exact)
