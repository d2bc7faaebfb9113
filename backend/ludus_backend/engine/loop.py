"""The engine's one thread for torch: takes requests, and steps the sampler in between."""

from __future__ import annotations

import os
import queue
import time
from typing import Any

from ludus_backend.engine.channel import Channel
from ludus_backend.engine.memory import peak_rss_bytes, rss_bytes
from ludus_backend.engine.models import EngineModels
from ludus_backend.engine_messages import (
    Cancel,
    Delete,
    Export,
    Forget,
    Fork,
    Generate,
    GenerateResult,
    ListCheckpoints,
    Ping,
    PingResult,
    ProgressEvent,
    Register,
    Sft,
    Shutdown,
    TokensEvent,
    Train,
)
from ludus_backend.sampling.sampler import Failure, Outcome, SampleRequest

_QUIET_SECONDS = 0.008
"""A batch starts when no request has come for so long, ..."""
_LONGEST_GATHER_SECONDS = 0.060
"""... or when the first has waited so long."""


class EngineLoop:
    """An error in one request answers that request; the loop goes on. Without work it sleeps."""

    def __init__(self, channel: Channel, models: EngineModels) -> None:
        self._channel = channel
        self._models = models
        self._streams: dict[int, bool] = {}
        """Unfinished generates, and whether each wants events."""
        self._stopped = False

    def run(self) -> None:
        """Returns after ``shutdown``."""
        self._channel.start(self._at_once)
        while not self._stopped:
            self._take_requests()
            if not self._stopped:
                self._step()

    def _at_once(self, request: Any) -> bool:
        if not isinstance(request, Ping):
            return False
        ping = PingResult(pid=os.getpid(), rss_bytes=rss_bytes(), peak_rss_bytes=peak_rss_bytes())
        self._channel.result(request.id, ping)
        return True

    def _take_requests(self) -> None:
        """Handles what has come; waits where there is nothing to do, and while a new batch is still gathering."""
        started: float | None = None
        while not self._stopped:
            sampler = self._models.sampler
            if sampler is None or not (sampler.running or sampler.waiting):
                request = self._channel.requests.get()
            else:
                started = started or time.monotonic()
                left = started + _LONGEST_GATHER_SECONDS - time.monotonic()
                wait = 0.0 if sampler.running else max(0.0, min(_QUIET_SECONDS, left))
                try:
                    request = self._channel.requests.get(block=wait > 0, timeout=wait or None)
                except queue.Empty:
                    return
            self._handle(request)

    def _handle(self, request: Any) -> None:
        try:
            match request:
                case Generate():
                    self._generate(request)
                case Cancel():
                    self._channel.result(request.id, {"cancelled": self._cancel(request.target)})
                case Forget():
                    if self._models.sampler is not None:
                        self._models.sampler.forget(request.conversation)
                    self._channel.result(request.id, {})
                case Register():
                    self._channel.result(request.id, self._models.register(request.model))
                case Train():
                    result = self._models.train(request.name, request.request, self._progress(request.id))
                    self._channel.result(request.id, result)
                case Sft():
                    result = self._models.sft(request.name, request.request, self._progress(request.id))
                    self._channel.result(request.id, result)
                case Fork():
                    self._channel.result(request.id, self._models.fork(request.fork))
                case Delete():
                    deleted = self._models.delete(request.name, request.request, request.leased, request.newest_known)
                    self._channel.result(request.id, deleted)
                case Export():
                    self._channel.result(request.id, self._models.export(request.name, request.request))
                case ListCheckpoints():
                    self._channel.result(request.id, self._models.checkpoints(request.name))
                case Shutdown():
                    self._channel.result(request.id, {})
                    self._stopped = True
        except Exception as error:
            self._channel.error(request.id, error)

    def _generate(self, request: Generate) -> None:
        sampler = self._models.sampler_for(request.policy)
        sampler.submit(
            SampleRequest(
                id=request.id,
                policy=request.policy,
                prompt_ids=request.prompt_ids,
                max_tokens=request.max_tokens,
                conversation=request.conversation,
                temperature=request.temperature,
                top_p=request.top_p,
                top_k=request.top_k,
                min_p=request.min_p,
                seed=request.seed,
                stop_ids=frozenset() if request.ignore_eos else frozenset(request.stop_ids),
                stop=request.stop,
            )
        )
        self._streams[request.id] = request.stream

    def _cancel(self, target: int) -> bool:
        sampler = self._models.sampler
        if sampler is None or not sampler.cancel(target):
            return False
        del self._streams[target]
        self._channel.cancelled(target)
        return True

    def _progress(self, id: int) -> Any:
        def report(done: int, total: int, phase: str) -> None:
            self._channel.event(id, ProgressEvent(done=done, total=total, phase=phase))

        return report

    def _step(self) -> None:
        sampler = self._models.sampler
        if sampler is None:
            return
        try:
            outcomes = sampler.step()
        except Exception as error:
            # Which sequence is to blame is not known: all that were running fail, so that the next step can work.
            for id in sampler.abort_running():
                del self._streams[id]
                self._channel.error(id, error)
            return
        for outcome in outcomes:
            self._report(outcome)

    def _report(self, outcome: Outcome | Failure) -> None:
        id = outcome.request
        if isinstance(outcome, Failure):
            del self._streams[id]
            self._channel.error(id, outcome.error)
            return
        if self._streams[id]:
            self._channel.event(id, TokensEvent(ids=[outcome.token], logprobs=[outcome.logprob]))
        if outcome.sample is not None:
            del self._streams[id]
            sample = outcome.sample
            self._channel.result(
                id,
                GenerateResult(
                    ids=sample.ids,
                    logprobs=sample.logprobs,
                    finish=sample.finish,
                    cached_tokens=sample.cached_tokens,
                ),
            )
