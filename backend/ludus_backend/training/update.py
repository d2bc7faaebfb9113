"""The gradient of one update: losses of all targets, accumulated over micro-batches with one global denominator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from ludus_backend.training.axes import LossAxes
from ludus_backend.training.losses import LossInputs, entropy, token_losses
from ludus_backend.training.shared_prefix import SharedPrefixPass, Visit, plan
from ludus_backend.training.targets import Targets

HEAD_CHUNK = 256
"""Positions whose logits exist at once: a vocabulary of 49,152 makes 50 MB of fp32 a copy of them."""

Report = Callable[[int], None]
"""Hears the tokens that passed through the model since the last call."""


@dataclass(frozen=True)
class Objective:
    """What is minimised: ``policy loss + kl * divergence - entropy_bonus * entropy``, weighted over the targets."""

    axes: LossAxes
    kl: float = 0.0
    entropy_bonus: float = 0.0


@dataclass
class UpdateFigures:
    """What an update saw; the gradients are in the parameters' ``grad``."""

    loss: float
    logprobs: torch.Tensor
    """fp32 ``[targets]``: log pi at the sampling temperature, before the update."""
    entropies: torch.Tensor
    """fp32 ``[targets]``, nats, of the distribution at the sampling temperature."""


class Update:
    """The targets of one update, planned once, for a model given as ``body`` (hidden states) and ``head`` (logits)."""

    def __init__(
        self, body: torch.nn.Module, head: torch.nn.Module, device: torch.device, targets: Targets, budget: int
    ) -> None:
        """``budget``: tokens a micro-batch."""
        self._pass = SharedPrefixPass(body, device)
        self._head = head
        self._targets = targets
        self._places = list(zip(targets.sequence, targets.position, strict=True))
        self._forests = plan(targets.sequences, budget)

    @property
    def computed_tokens(self) -> int:
        """Tokens that go through the model in one pass."""
        return sum(forest.tokens for forest in self._forests)

    @property
    def plain_tokens(self) -> int:
        """Tokens that would without shared prefixes."""
        return sum(map(len, self._targets.sequences))

    @property
    def micro_batches(self) -> int:
        """Pieces whose activations exist one after the other, shared prefixes not counted."""
        return sum(len(forest.chunks) for forest in self._forests)

    @torch.no_grad()
    def logprobs(self, report: Report) -> torch.Tensor:
        """fp32 ``[targets]``: log pi of every target with the weights as they are; a pass without gradient."""
        found = torch.zeros(len(self._targets))

        def visit(hidden: torch.Tensor, rows: list[int], entries: list[int]) -> None:
            for logs, pick, chosen in self._distributions(hidden, rows, entries):
                found[chosen] = logs[pick, self._targets.label[chosen]].cpu()

        self._run(visit, report)
        return found

    def accumulate(self, inputs: LossInputs, objective: Objective, report: Report) -> UpdateFigures:
        """Adds the gradient of the whole update to ``grad`` of whatever requires one.

        A ratio of level ``sequence`` couples tokens that may lie in several micro-batches. A pass without gradient
        comes first: from its log-probabilities follows the derivative of the loss by each of them, exactly, and the
        micro-batches carry that derivative back.
        """
        targets, axes, kl = self._targets, objective.axes, objective.kl
        slopes: torch.Tensor | None = None
        figures = UpdateFigures(0.0, torch.zeros(len(targets)), torch.zeros(len(targets)))
        if axes.importance_level == "sequence":
            leaf = self.logprobs(report).requires_grad_()
            loss = (token_losses(axes, kl, leaf, inputs) * targets.weight).sum()
            (slopes,) = torch.autograd.grad(loss, leaf)
            figures.loss = loss.item()

        def visit(hidden: torch.Tensor, rows: list[int], entries: list[int]) -> None:
            for logs, pick, chosen in self._distributions(hidden, rows, entries):
                logprobs = logs[pick, targets.label[chosen]].cpu()
                if slopes is None:
                    loss = (token_losses(axes, kl, logprobs, inputs.select(chosen)) * targets.weight[chosen]).sum()
                    figures.loss += loss.item()
                else:
                    loss = (slopes[chosen] * logprobs).sum()
                with torch.set_grad_enabled(objective.entropy_bonus > 0):
                    entropies = entropy(logs)[pick].cpu()
                    bonus = objective.entropy_bonus * (entropies * targets.weight[chosen]).sum()
                (loss - bonus).backward()
                figures.loss -= bonus.item()
                figures.logprobs[chosen] = logprobs.detach()
                figures.entropies[chosen] = entropies.detach()

        self._run(visit, report)
        return figures

    def _run(self, visit: Visit, report: Report) -> None:
        for forest in self._forests:
            self._pass.run(forest, self._places, visit, report)

    def _distributions(
        self, hidden: torch.Tensor, rows: list[int], entries: list[int]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Log-probabilities ``[n, vocabulary]`` of at most ``HEAD_CHUNK`` distinct (row, temperature), fp32.

        Yields them with, for each target they answer, its row among the n and its number. Logits are divided by the
        sampling temperature before the log-softmax: the sampler recorded processed log-probabilities.
        """
        answers: dict[tuple[int, float], list[int]] = {}
        for row, entry in zip(rows, entries, strict=True):
            answers.setdefault((row, float(self._targets.temperature[entry])), []).append(entry)
        places = sorted(answers)
        for start in range(0, len(places), HEAD_CHUNK):
            part = places[start : start + HEAD_CHUNK]
            logits = self._head(hidden[[row for row, _ in part]]).float()
            temperatures = torch.tensor([temperature for _, temperature in part], device=logits.device)
            logs = torch.log_softmax(logits / temperatures[:, None], dim=-1)
            pick = [index for index, place in enumerate(part) for _ in answers[place]]
            chosen = [entry for place in part for entry in answers[place]]
            yield logs, torch.tensor(pick), torch.tensor(chosen)
