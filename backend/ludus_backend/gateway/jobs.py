"""Training jobs: started once per key, followed by anyone, remembered for a while after their end."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from ludus_backend.errors import LudusError
from ludus_backend.gateway.engine_client import EngineClient
from ludus_backend.gateway.engine_wire import OnEvent
from ludus_backend.gateway.models import ServedModel
from ludus_backend.protocol import JobEvent, TrainRequest, TrainResult

_KEPT_SECONDS = 900.0
_KEPT_JOBS = 64
_QUIET_SECONDS = 10.0
"""After this long without news a follower is told that the job still runs."""

Work = Callable[[OnEvent], Awaitable[TrainResult]]
"""What a job does; it reports progress as the engine words it: ``done``, ``total``, ``phase``."""


class Job:
    """Work in the engine and the events it has had so far. Goes on when nobody follows it."""

    def __init__(self, model: ServedModel, work: Work) -> None:
        self.id = f"job-{secrets.token_hex(12)}"
        self.events: list[JobEvent] = []
        self.ended_at: float | None = None
        self._changed = asyncio.Event()
        self._model, self._work = model, work
        self._task = asyncio.create_task(self._run())

    @property
    def running(self) -> bool:
        return self.ended_at is None

    async def follow(self, after: int) -> AsyncIterator[JobEvent | None]:
        """Events with a sequence above ``after``, to the last one; None when nothing happened for a while."""
        while True:
            for recorded in self.events[after:]:
                after = recorded.sequence
                yield recorded
            if not self.running:
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(_QUIET_SECONDS):
                    await self._changed.wait()
            except TimeoutError:
                yield None

    async def _run(self) -> None:
        try:
            result = await self._work(self._on_progress)
        except LudusError as error:
            self._record(JobEvent(sequence=0, type="failed", error=error.detail))
        except Exception as error:  # the follower must hear of it, whatever it was
            detail = LudusError("internal", f"The training ended with {type(error).__name__}: {error}").detail
            self._record(JobEvent(sequence=0, type="failed", error=detail))
            raise
        else:
            # First the name, then the news: whoever hears "completed" samples from the new step.
            self._model.committed(result)
            self._record(JobEvent(sequence=0, type="completed", result=result))

    def _on_progress(self, event: dict[str, Any]) -> None:
        self._record(
            JobEvent(sequence=0, type="progress", done=event["done"], total=event["total"], phase=event["phase"])
        )

    def _record(self, recorded: JobEvent) -> None:
        if recorded.type != "progress":
            self.ended_at = time.monotonic()
        self.events.append(recorded.model_copy(update={"sequence": len(self.events) + 1}))
        self._changed.set()


class Jobs:
    """Jobs by id, and the running one of each (model, key)."""

    def __init__(self) -> None:
        self._by_id: dict[str, Job] = {}
        self._by_key: dict[tuple[str, str], Job] = {}

    def start(self, model: ServedModel, key: str, work: Work) -> Job:
        """A new job, or the one that already runs for this key. A key whose job has ended is the engine's to judge."""
        self._drop_old()
        owner = (model.info.name, key)
        running = self._by_key.get(owner)
        if running is not None and running.running:
            return running
        job = Job(model, work)
        self._by_id[job.id] = self._by_key[owner] = job
        return job

    def get(self, job_id: str) -> Job:
        job = self._by_id.get(job_id)
        if job is None:
            raise LudusError(
                "not_found",
                "This job is not known",
                field="id",
                value=job_id,
                expected=f"a running job, or one of the {_KEPT_JOBS} newest that ended in the last 15 minutes",
                advice="send the train request again with the same key: a step that was made is not made twice",
            )
        return job

    def _drop_old(self) -> None:
        ended = sorted((job for job in self._by_id.values() if not job.running), key=lambda job: job.ended_at or 0.0)
        now = time.monotonic()
        for position, job in enumerate(ended):
            if len(ended) - position > _KEPT_JOBS or now - (job.ended_at or 0.0) > _KEPT_SECONDS:
                del self._by_id[job.id]
        self._by_key = {key: job for key, job in self._by_key.items() if job.running}


def train_work(engine: EngineClient, model: ServedModel, request: TrainRequest) -> Work:
    """One update."""
    fields = {"name": model.info.name, "request": request.model_dump(by_alias=True, mode="json")}

    async def work(on_event: OnEvent) -> TrainResult:
        return finite_result(await engine.request("train", fields, on_event=on_event))

    return work


def finite_result(answer: dict[str, Any]) -> TrainResult:
    """A train result whose metrics are all finite numbers; any other is left out and named in ``nonFinite``."""
    metrics: dict[str, Any] = answer.get("metrics") or {}
    numbers = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
    finite = {name: value for name, value in numbers.items() if math.isfinite(value)}
    lost = sorted({*answer.get("nonFinite", []), *(metrics.keys() - finite.keys())})
    return TrainResult.model_validate({**answer, "metrics": finite, "nonFinite": lost})
