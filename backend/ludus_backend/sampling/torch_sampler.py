"""The sampler on torch: continuous batching over one stream of tokens, prefix reuse, one merged adapter at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch

from ludus_backend.errors import LudusError
from ludus_backend.models.base_model import LoadedBase
from ludus_backend.sampling.adapter_file import adapter_not_applied
from ludus_backend.sampling.kv_store import KvStore
from ludus_backend.sampling.merged_model import largest_change
from ludus_backend.sampling.model_runner import ModelRunner
from ludus_backend.sampling.sampler import Failure, Finish, Outcome, Sample, SampleRequest
from ludus_backend.sampling.scheduler import Scheduler, Sequence
from ludus_backend.sampling.stop_strings import StopStrings
from ludus_backend.sampling.token_choice import Choosing, choose

DEFAULT_KV_BYTES = 1 << 30
CHUNK_TOKENS = 512
"""Prompt tokens a forward pass: enough for fast matrix products, few enough that activations stay in cache."""
_ROUNDS_AWAY = 1e-6
"""Change of a layer, relative to its largest weight, below which fp32 (2**-24 = 6e-8) may not carry it to a logit."""


class TorchSampler:
    """Implements ``sampling.sampler.Sampler``. Not thread-safe: one thread calls everything."""

    def __init__(self, base: LoadedBase, *, kv_bytes: int = DEFAULT_KV_BYTES, chunk_tokens: int = CHUNK_TOKENS) -> None:
        """``kv_bytes``: memory for keys and values. ``chunk_tokens``: prompt tokens computed in one forward pass.

        Raises ``LudusError(invalid_request)`` where the model needs more than keys and values per position.
        """
        self._base = base
        self._runner = ModelRunner(base, kv_bytes)
        self._store = KvStore(self._runner.pool)
        self._scheduler = Scheduler(self._store, chunk_tokens)
        self._adapters: dict[str, Path] = {}
        self._merged: str | None = None

    def publish(self, policy: str, adapter: Path) -> None:
        previous = self._adapters.get(policy)
        if previous == adapter:
            return
        self._merged = None
        changes = self._runner.load(adapter)
        distance = self._runner.distance_from_base()
        if not self._plausible(changes, distance, adapter):
            raise adapter_not_applied(
                "the adapter does not change the model as it says",
                adapter,
                value=f"largest change of a logit {distance:g}",
                expected="above 0" if changes else "0, because the adapter is zero",
            )
        if previous is not None:
            self._store.drop_policy(policy)
        self._adapters[policy] = adapter
        self._merged = policy

    def _plausible(self, changes: bool, distance: float, adapter: Path) -> bool:
        """Whether the logits moved as the adapter says; one too small for fp32 to show may leave them alone."""
        if not math.isfinite(distance) or changes == (distance > 0):
            return math.isfinite(distance)
        return changes and largest_change(self._base, adapter) < _ROUNDS_AWAY

    def retire(self, policy: str) -> None:
        self._adapters.pop(policy, None)
        self._store.drop_policy(policy)

    def knows(self, policy: str) -> bool:
        return policy in self._adapters

    def in_use(self, policy: str) -> bool:
        unfinished = (*self._scheduler.waiting, *self._scheduler.running)
        return any(sequence.request.policy == policy for sequence in unfinished)

    @property
    def waiting(self) -> int:
        return len(self._scheduler.waiting)

    @property
    def running(self) -> int:
        return len(self._scheduler.running)

    def submit(self, request: SampleRequest) -> None:
        if request.policy not in self._adapters:
            raise LudusError(
                "unknown_model",
                "no adapter of this name is published",
                field="policy",
                value=request.policy,
                expected=", ".join(self._adapters) or "a registered model",
                advice="register the model, or name a step that exists",
            )
        context, prompt = self._base.context_length, len(request.prompt_ids)
        if prompt >= context:
            raise LudusError(
                "context_length_exceeded",
                f"the prompt has {prompt} tokens, but the model's context holds {context}, reply included",
                field="promptIds",
                value=prompt,
                expected=f"at most {context - 1} tokens",
                advice="shorten the history, or use a model with a longer context",
            )
        vocabulary = self._runner.vocabulary
        if not 0 <= min(request.prompt_ids) <= max(request.prompt_ids) < vocabulary:
            raise LudusError(
                "invalid_request",
                "a prompt id is not in the vocabulary",
                field="promptIds",
                value=next(token for token in request.prompt_ids if not 0 <= token < vocabulary),
                expected=f"0 to {vocabulary - 1}",
                advice="render the prompt with this model's own tokenizer",
            )
        memory = self._store.longest_sequence
        if prompt >= memory:
            raise LudusError(
                "too_large",
                f"the prompt has {prompt} tokens, but the memory for keys and values holds {memory}, reply included",
                field="promptIds",
                value=prompt,
                expected=f"at most {memory - 1} tokens",
                advice="shorten the history, or give the engine more memory (LUDUS_KV_BYTES)",
            )
        longest = min(request.max_tokens, context - prompt, memory - prompt)
        # One list of ids becomes one string; the declared type also covers batches.
        decode = cast(Callable[[list[int]], str], self._base.tokenizer.decode)
        stops = StopStrings(request.stop, decode)
        self._scheduler.waiting.append(Sequence(request, longest, stops, list(request.prompt_ids)))

    def cancel(self, request: int) -> bool:
        for sequence in (*self._scheduler.waiting, *self._scheduler.running):
            if sequence.request.id == request:
                self._scheduler.finish(sequence)
                return True
        return False

    def abort_running(self) -> list[int]:
        running = list(self._scheduler.running)
        for sequence in running:
            self._scheduler.abandon(sequence)
        return [sequence.request.id for sequence in running]

    def forget(self, conversation: str) -> None:
        self._store.forget(conversation)

    @torch.inference_mode()
    def step(self) -> list[Outcome | Failure]:
        planned = self._scheduler.next()
        if not planned:
            return []
        policy = planned[0][0].request.policy
        try:
            self._use(policy)
        except LudusError as error:
            return [self._fail(sequence, error) for sequence, _ in planned]
        ready = []
        for index, (sequence, piece) in enumerate(planned):
            assert sequence.resident is not None
            if piece.start + piece.count == len(sequence.ids):
                ready.append(index)
        logits = self._runner.forward([piece for _, piece in planned], ready)
        for sequence, piece in planned:
            assert sequence.resident is not None
            sequence.resident.computed = piece.start + piece.count
        if not ready:
            return []
        sequences = [planned[index][0] for index in ready]
        ids, logprobs = choose(logits, [_choosing(sequence) for sequence in sequences])
        return [self._taken(*chosen) for chosen in zip(sequences, ids, logprobs, strict=True)]

    def _use(self, policy: str) -> None:
        if self._merged == policy:
            return
        self._merged = None
        self._runner.load(self._adapters[policy])
        self._merged = policy

    def _taken(self, sequence: Sequence, token: int, logprob: float) -> Outcome | Failure:
        """One row's token; whatever is wrong with a row fails that row only."""
        if not math.isfinite(logprob):
            return self._fail(sequence, _no_distribution(sequence))
        try:
            return self._take(sequence, token, logprob)
        except Exception as error:
            return self._fail(sequence, error)

    def _take(self, sequence: Sequence, token: int, logprob: float) -> Outcome:
        sequence.ids.append(token)
        sequence.logprobs.append(logprob)
        reply = sequence.reply
        stopped = token in sequence.request.stop_ids or sequence.stops.completed(reply)
        if not stopped and sequence.sampled < sequence.max_tokens:
            return Outcome(sequence.request.id, token, logprob)
        self._scheduler.finish(sequence)
        finish: Finish = "stop" if stopped else "length"
        sample = Sample(reply, sequence.logprobs, finish, sequence.cached_tokens or 0)
        return Outcome(sequence.request.id, token, logprob, sample)

    def _fail(self, sequence: Sequence, error: Exception) -> Failure:
        self._scheduler.finish(sequence)
        return Failure(sequence.request.id, error)


def _no_distribution(sequence: Sequence) -> LudusError:
    request = sequence.request
    return LudusError(
        "internal",
        f"{request.policy} has no next-token distribution here: its logits are not finite numbers",
        field="policy",
        value=f"{request.policy}, temperature {request.temperature:g}",
        expected="finite logits, divided by the temperature",
        advice="use a higher temperature, or an earlier step of the model",
    )


def _choosing(sequence: Sequence) -> Choosing:
    request = sequence.request
    return Choosing(request.seed, sequence.sampled, request.temperature, request.top_p, request.top_k, request.min_p)
