"""One supervised update: the mean negative log-likelihood of the trained tokens, shared prefixes computed once.

``loss = -(1 / N) sum log pi(token | what is before it)`` over all ``N`` trained tokens of the update: the denominator
is global, so micro-batches change nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from ludus_backend.engine_messages import SftRow, SftUpdate
from ludus_backend.errors import LudusError
from ludus_backend.protocol import TrainResult
from ludus_backend.training.metrics import finite
from ludus_backend.training.registered import NonFiniteWeightsError, RegisteredModel
from ludus_backend.training.shared_prefix import SharedPrefixPass, plan

HEAD_CHUNK = 256
"""Positions whose logits exist at once."""


@dataclass
class NllFigures:
    """What the pass saw; the gradients are in the parameters' ``grad``."""

    loss: float
    accuracy: float
    """Share of trained tokens that the model held most likely."""
    trained_tokens: int
    computed_tokens: int
    """Tokens that passed through the model."""


def supervised_update(
    model: RegisteredModel,
    request: SftUpdate,
    vocabulary: int,
    context_length: int,
    budget: int,
    progress: Callable[[int, int, str], None],
) -> TrainResult:
    """Makes the model's next step from ``request.rows``; the caller has checked key and step.

    A loss, gradient or weight that is not finite makes no step (``reasons``). Raises ``LudusError``:
    ``invalid_request`` for rows that cannot be trained, ``disk_full``.
    """
    started = time.perf_counter()
    check_rows(request.rows, vocabulary, context_length)
    model.refuse_full_disk()
    learner, config = model.learner, request.config
    for parameter in learner.parameters:
        parameter.grad = None
    figures = accumulate_nll(
        learner.body,
        learner.head,
        learner.device,
        request.rows,
        min(config.max_tokens_per_micro_batch, budget),
        lambda done, total: progress(done, total, "update"),
    )
    norm = torch.nn.utils.clip_grad_norm_(learner.parameters, config.grad_clip).item()
    seconds = time.perf_counter() - started
    tokens = sum(len(row.ids) for row in request.rows)
    metrics = {
        "sft/loss": figures.loss,
        "sft/accuracy": figures.accuracy,
        "sft/learning_rate": config.learning_rate,
        "grad_norm": norm,
        "rows": len(request.rows),
        "trained_tokens": figures.trained_tokens,
        "computed_tokens": figures.computed_tokens,
        "plain_tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "seconds": seconds,
    }
    kept, non_finite = finite(metrics)
    for reason, value in (("non_finite_loss", figures.loss), ("non_finite_gradient", norm)):
        if not math.isfinite(value):
            return _untrained(model, kept, non_finite, reason)
    progress(figures.computed_tokens, figures.computed_tokens, "checkpoint")
    try:
        return model.commit(request, kept, non_finite)
    except NonFiniteWeightsError as error:
        return _untrained(model, kept, non_finite, error.reason)


def _untrained(model: RegisteredModel, metrics: dict[str, float], non_finite: list[str], reason: str) -> TrainResult:
    return TrainResult(
        step=model.step,
        trained=False,
        policy=f"{model.request.name}@{model.step}",
        metrics=metrics,
        non_finite=non_finite,
        reasons={reason: 1},
    )


def accumulate_nll(
    body: torch.nn.Module,
    head: torch.nn.Module,
    device: torch.device,
    rows: Sequence[SftRow],
    budget: int,
    progress: Callable[[int, int], None],
) -> NllFigures:
    """Adds the gradient of the update to ``grad`` of whatever requires one. ``budget``: tokens a micro-batch."""
    sequences = [row.ids[: row.trained[-1]] for row in rows]
    places = [(index, place - 1) for index, row in enumerate(rows) for place in row.trained]
    labels = torch.tensor([row.ids[place] for row in rows for place in row.trained], device=device)
    forests = plan(sequences, budget)
    figures = NllFigures(0.0, 0.0, len(places), sum(forest.tokens for forest in forests))
    done = 0

    def visit(hidden: torch.Tensor, positions: list[int], entries: list[int]) -> None:
        for start in range(0, len(entries), HEAD_CHUNK):
            wanted = labels[entries[start : start + HEAD_CHUNK]]
            logits = head(hidden[positions[start : start + HEAD_CHUNK]]).float()
            loss = cross_entropy(logits, wanted, reduction="sum") / len(places)
            loss.backward()
            figures.loss += loss.item()
            figures.accuracy += (logits.argmax(dim=-1) == wanted).sum().item() / len(places)

    def report(tokens: int) -> None:
        nonlocal done
        done += tokens
        progress(done, figures.computed_tokens)

    run = SharedPrefixPass(body, device).run
    for forest in forests:
        run(forest, places, visit, report)
    return figures


def check_rows(rows: Sequence[SftRow], vocabulary: int, context_length: int) -> None:
    """Refuses rows that the model cannot take, before any weight changes."""
    for index, row in enumerate(rows):
        if max(row.ids) >= vocabulary:
            _refuse(
                "a token id is outside the vocabulary", f"rows[{index}].ids", max(row.ids), f"0 to {vocabulary - 1}"
            )
        if len(row.ids) > context_length:
            expected = f"at most {context_length} tokens"
            _refuse("a row is longer than the model's context", f"rows[{index}].ids", len(row.ids), expected)
        if row.trained != sorted(set(row.trained)) or row.trained[-1] >= len(row.ids):
            expected = f"ascending places from 1 to {len(row.ids) - 1}"
            _refuse("the trained places are not in the row", f"rows[{index}].trained", row.trained, expected)


def _refuse(message: str, field: str, value: object, expected: str) -> None:
    raise LudusError(
        "invalid_request",
        message,
        field=field,
        value=value,
        expected=expected,
        advice="render the examples with the tokenizer of this model",
    )
