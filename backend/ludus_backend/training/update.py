"""The gradient of one update: losses of all targets, accumulated over micro-batches with one global denominator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from ludus_backend.training.losses import LossAxes, clamped_log_ratio, entropy, policy_loss
from ludus_backend.training.shared_prefix import Forest, SharedPrefixPass, plan
from ludus_backend.training.targets import Targets

HEAD_CHUNK = 256
"""Positions whose logits exist at once: a vocabulary of 49,152 makes 50 MB of fp32 a copy of them."""


@dataclass
class UpdateFigures:
    """What an update saw; the gradients are in the parameters' ``grad``."""

    loss: float
    logprobs: torch.Tensor
    """fp32 ``[targets]``: log pi at the sampling temperature, before the update."""
    entropies: torch.Tensor
    """fp32 ``[targets]``, nats, of the distribution at the sampling temperature."""
    computed_tokens: int
    """Tokens that passed through the model."""
    plain_tokens: int
    """Tokens that would have without shared prefixes."""


class Update:
    """Computes gradients of a loss for a model given as ``body`` (hidden states) and ``head`` (logits)."""

    def __init__(self, body: torch.nn.Module, head: torch.nn.Module, device: torch.device) -> None:
        self._pass = SharedPrefixPass(body, device)
        self._head = head

    def accumulate(
        self,
        targets: Targets,
        axes: LossAxes,
        ratio_cap: float,
        entropy_bonus: float,
        budget: int,
        progress: Callable[[int, int], None],
    ) -> UpdateFigures:
        """Adds the gradient of the whole update to ``grad`` of whatever requires one.

        ``budget``: tokens a micro-batch. A trajectory-level ratio takes a pass without gradient first, because the
        tokens of a trajectory may lie in several micro-batches.
        """
        forests = plan(targets.sequences, budget)
        tokens = sum(forest.tokens for forest in forests)
        report = _counter(progress, tokens * (2 if axes.level == "trajectory" else 1))
        means = self._trajectory_means(targets, forests, report) if axes.level == "trajectory" else None
        figures = UpdateFigures(0.0, torch.zeros(len(targets)), torch.zeros(len(targets)), tokens, 0)
        figures.plain_tokens = sum(map(len, targets.sequences))

        def visit(hidden: torch.Tensor, rows: list[int], entries: list[int]) -> None:
            for logs, pick, chosen in self._distributions(hidden, rows, entries, targets):
                logprobs = logs[pick, targets.label[chosen]]
                losses = policy_loss(
                    axes,
                    logprobs,
                    targets.recorded[chosen],
                    targets.advantage[chosen],
                    ratio_cap,
                    None if means is None else means[chosen],
                )
                if entropy_bonus:
                    entropies = entropy(logs)[pick]
                    losses = losses - entropy_bonus * entropies
                else:
                    with torch.no_grad():
                        entropies = entropy(logs)[pick]
                loss = (losses * targets.weight[chosen]).sum()
                loss.backward()
                figures.loss += loss.item()
                figures.logprobs[chosen] = logprobs.detach()
                figures.entropies[chosen] = entropies.detach()

        for forest in forests:
            self._pass.run(forest, list(zip(targets.sequence, targets.position, strict=True)), visit, report)
        return figures

    @torch.no_grad()
    def _trajectory_means(
        self, targets: Targets, forests: list[Forest], progress: Callable[[int], None]
    ) -> torch.Tensor:
        """For each target the mean log ratio over its trajectory's targets, ``[targets]``."""
        logprobs = torch.zeros(len(targets))

        def visit(hidden: torch.Tensor, rows: list[int], entries: list[int]) -> None:
            for logs, pick, chosen in self._distributions(hidden, rows, entries, targets):
                logprobs[chosen] = logs[pick, targets.label[chosen]]

        for forest in forests:
            self._pass.run(forest, list(zip(targets.sequence, targets.position, strict=True)), visit, progress)
        ratios = clamped_log_ratio(logprobs, targets.recorded)
        sums = torch.zeros(int(targets.trajectory.max()) + 1).index_add_(0, targets.trajectory, ratios)
        return (sums / torch.bincount(targets.trajectory))[targets.trajectory]

    def _distributions(
        self, hidden: torch.Tensor, rows: list[int], entries: list[int], targets: Targets
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Log-probabilities ``[n, vocabulary]`` of at most ``HEAD_CHUNK`` distinct (row, temperature), fp32.

        Yields them with, for each target they answer, its row among the n and its number. Logits are divided by the
        sampling temperature before the log-softmax: the sampler recorded processed log-probabilities.
        """
        answers: dict[tuple[int, float], list[int]] = {}
        for row, entry in zip(rows, entries, strict=True):
            answers.setdefault((row, float(targets.temperature[entry])), []).append(entry)
        places = sorted(answers)
        for start in range(0, len(places), HEAD_CHUNK):
            part = places[start : start + HEAD_CHUNK]
            logits = self._head(hidden[[row for row, _ in part]]).float()
            temperatures = torch.tensor([temperature for _, temperature in part], device=logits.device)
            logs = torch.log_softmax(logits / temperatures[:, None], dim=-1)
            pick = [index for index, place in enumerate(part) for _ in answers[place]]
            chosen = [entry for place in part for entry in answers[place]]
            yield logs, torch.tensor(pick), torch.tensor(chosen)


def _counter(progress: Callable[[int, int], None], total: int) -> Callable[[int], None]:
    done = 0

    def report(tokens: int) -> None:
        nonlocal done
        done += tokens
        progress(done, total)

    return report
