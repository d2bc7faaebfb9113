"""A request while it is sampled: shared by everyone who asked for it, cancelled when the last of them is gone."""

from __future__ import annotations

import asyncio
import secrets
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ludus_backend.errors import LudusError
from ludus_backend.gateway.chat_request import ChatRequest
from ludus_backend.gateway.conversations import ServedExchange
from ludus_backend.gateway.engine_client import EngineClient
from ludus_backend.gateway.episodes import EpisodeState
from ludus_backend.gateway.models import ServedModel
from ludus_backend.gateway.prompts import Prompt, sampling_fields
from ludus_backend.gateway.sample import Sample, read_sample


@dataclass(frozen=True)
class Tokens:
    """A streamed stretch of choice ``index``."""

    index: int
    ids: list[int]
    logprobs: list[float]


class Generation:
    """``n`` choices of one prompt, sampled by one task of its own, so that a repeated request can join it.

    ``exchanges`` holds each choice's exchange id, ``reply_id`` is unique too: clients merge messages by it.
    ``tokens`` grows while it streams; :meth:`more` waits for growth.
    """

    def __init__(
        self,
        engine: EngineClient,
        request: ChatRequest,
        model: ServedModel,
        policy: str,
        prompt: Prompt,
        episode: EpisodeState | None,
    ) -> None:
        self.request, self.model, self.policy, self.prompt = request, model, policy, prompt
        self.exchanges = [f"exchange-{secrets.token_hex(12)}" for _ in request.seeds]
        self.reply_id, self.created = f"chatcmpl-{secrets.token_hex(16)}", int(time.time())
        self.tokens: list[Tokens] = []
        self._engine, self._episode = engine, episode
        self._order = 0 if episode is None else episode.conversations.next_order()
        self._attached = 0
        self._abandoned = False
        self._grown = asyncio.Event()
        if episode is not None:
            episode.running.add(self)
        self._task = asyncio.create_task(self._sample_all())
        self._task.add_done_callback(self._on_end)

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Holds it alive: when the last one who is attached leaves before the end, sampling is cancelled."""
        self._attached += 1
        try:
            yield
        finally:
            self._attached -= 1
            if self._attached == 0 and not self._task.done():
                self._task.cancel()

    async def result(self) -> list[Sample]:
        """The choices, in order. Errors: what the engine answered, ``unknown_episode`` where it was closed."""
        await asyncio.wait({self._task})
        if self._task.cancelled():
            raise LudusError(
                "unknown_episode" if self._abandoned else "engine_failed",
                "The episode was closed while this reply was sampled"
                if self._abandoned
                else "Sampling was cancelled by the client that shared this request",
                advice="close an episode after its last reply",
            )
        return self._task.result()

    async def more(self, seen: int) -> bool:
        """Waits until there are more than ``seen`` stretches of tokens; False: it has ended without more."""
        while len(self.tokens) <= seen and not self._task.done():
            self._grown.clear()
            await self._grown.wait()
        return len(self.tokens) > seen

    def abandon(self) -> None:
        """Ends it for everyone: its episode is closed."""
        self._abandoned = True
        self._task.cancel()

    async def ended(self) -> None:
        """Waits until the engine has been told everything about it."""
        await asyncio.wait({self._task})

    @property
    def usable(self) -> bool:
        """Whether a repeated request may be answered from it: it runs, or it succeeded."""
        return not self._task.done() or (not self._task.cancelled() and self._task.exception() is None)

    def _on_end(self, task: asyncio.Task[list[Sample]]) -> None:
        self._grown.set()
        if self._episode is not None:
            self._episode.running.discard(self)
        if not task.cancelled():
            task.exception()  # read here: a failed generation that nobody waits for any more is no surprise

    async def _sample_all(self) -> list[Sample]:
        fields = {
            "policy": self.policy,
            "conversation": None if self._episode is None else self._episode.kv_key,
            **sampling_fields(self.request, self.model, self.prompt),
        }
        tasks = [asyncio.create_task(self._sample(i, seed, fields)) for i, seed in enumerate(self.request.seeds)]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _sample(self, index: int, seed: int, fields: dict[str, Any]) -> Sample:
        def on_event(event: dict[str, Any]) -> None:
            self.tokens.append(Tokens(index, event["ids"], event["logprobs"]))
            self._grown.set()

        answer = await self._engine.request("generate", {**fields, "seed": seed}, on_event=on_event)
        sample = read_sample(self.exchanges[index], answer, self.request, self.model, self.prompt.ids)
        if self._episode is not None:
            exchange = ServedExchange(
                id=sample.exchange,
                order=(self._order, -index),
                prompt_ids=array("I", self.prompt.ids),
                sampled_ids=array("I", sample.ids),
            )
            self._episode.conversations.add(self.prompt.chain, sample.message, exchange)
        return sample
