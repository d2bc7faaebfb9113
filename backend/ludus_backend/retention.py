"""Which checkpoints may go. Deleting cannot be undone, so whatever is in doubt stays, with its reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ludus_backend.checkpoints import StoredCheckpoint
from ludus_backend.errors import LudusError
from ludus_backend.protocol import DeleteCheckpoints, DeletedCheckpoints, KeepBest, KeptCheckpoint

_SHOWN_METRICS = 20


def plan_deletion(
    steps: Sequence[int],
    readable: Sequence[StoredCheckpoint],
    request: DeleteCheckpoints,
    in_use: Callable[[int], bool],
) -> DeletedCheckpoints:
    """What ``request`` deletes of ``steps`` (ascending). ``readable``: those whose manifest can be read.

    Under a retention everything is deleted that no rule keeps. ``keepBest`` needs its metric in every checkpoint that
    an update made; where one lacks it, all are kept and a notice says why. Raises ``LudusError(invalid_request)`` for a
    request without or with both forms, and for a step that was never made.
    """
    if (request.steps is None) == (request.keep_last is None and request.keep_best is None):
        raise LudusError(
            "invalid_request",
            "a deletion names steps, or what to keep",
            field="steps",
            value=request.steps,
            expected="either steps, or keepLast and keepBest",
            advice="leave one of the two out; nothing was deleted",
        )
    kept: dict[int, KeptCheckpoint] = {}
    notices = _absent(request.steps or [], steps)

    def keep(reason: str, which: Sequence[int]) -> None:
        for step in which:
            kept.setdefault(step, KeptCheckpoint.model_validate({"step": step, "reason": reason}))

    keep("newest", steps[-1:])
    keep("in_use", [step for step in steps if in_use(step)])
    keep("asked", [step for step in request.keep if step in steps])
    if request.steps is None:
        keep("last", steps[-request.keep_last :] if request.keep_last else [])
        if request.keep_best is not None:
            best, problem = _best(steps, readable, request.keep_best)
            keep("best" if problem is None else "unknown_metric", best)
            notices += [problem] if problem is not None else []
        keep("unreadable", sorted(set(steps) - {stored.step for stored in readable}))
    wanted = steps if request.steps is None else sorted(set(request.steps) & set(steps))
    return DeletedCheckpoints(
        deleted=[step for step in wanted if step not in kept],
        kept=[kept[step] for step in wanted if step in kept],
        notices=notices,
    )


def _best(
    steps: Sequence[int], readable: Sequence[StoredCheckpoint], rule: KeepBest
) -> tuple[Sequence[int], str | None]:
    """The best steps; or all of them and a notice, where the metric does not tell."""
    made = [stored for stored in readable if stored.key is not None]
    """By an update: step 0 has no figures."""
    ranked = [(stored.metrics[rule.metric], stored.step) for stored in made if rule.metric in stored.metrics]
    lacking = sorted({step for step in steps if step != 0} - {step for _, step in ranked})
    if lacking or not ranked:
        known = sorted({name for stored in made for name in stored.metrics})[:_SHOWN_METRICS]
        which = f"of checkpoints {', '.join(map(str, lacking))}" if lacking else "of any checkpoint"
        choices = f"; known: {', '.join(known)}" if known else ""
        return steps, f"all checkpoints were kept: the metric {rule.metric} {which} is not known{choices}"
    sign = 1 if rule.mode == "max" else -1
    ranked.sort(key=lambda entry: (sign * entry[0], entry[1]), reverse=True)
    return [step for _, step in ranked[: rule.count]], None


def _absent(wanted: Sequence[int], steps: Sequence[int]) -> list[str]:
    """A notice for each step that is gone already, as after a repeat; refuses one that was never made."""
    for index, step in enumerate(wanted):
        if step > max(steps, default=-1):
            raise LudusError(
                "invalid_request",
                "there is no such checkpoint",
                field=f"steps[{index}]",
                value=step,
                expected=f"a step among {list(steps)}",
                advice="list the model's checkpoints; nothing was deleted",
            )
    return [f"checkpoint {step} is not there any more" for step in wanted if step not in steps]
