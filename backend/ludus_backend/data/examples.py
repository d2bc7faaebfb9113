"""A conversation becomes ids, and the places of the tokens that the model itself would have sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ludus_backend.errors import LudusError

if TYPE_CHECKING:
    from renderers.base import Renderer

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None


@dataclass(frozen=True)
class ExampleRow:
    """``trained``: ascending places in ``ids`` whose tokens carry loss; may be empty."""

    ids: list[int]
    trained: list[int]


def example_row(
    renderer: Renderer, messages: Messages, tools: Tools, chosen: Sequence[int], stop_ids: Sequence[int]
) -> ExampleRow:
    """Renders one conversation; the tokens of the assistant messages ``chosen`` (indices) carry loss.

    What the template adds around a reply (role, line breaks) is never trained, its end-of-turn token is. Where the
    renderer does not say what the model samples, the mask is the difference of two renderings.
    """
    rendered = renderer.render(list(messages), tools=_listed(tools), add_generation_prompt=False)
    ids = list(rendered.token_ids)
    if not rendered.sampled_mask:
        return ExampleRow(ids, trained_by_difference(renderer, messages, tools, chosen, stop_ids, ids))
    wanted = set(chosen)
    owned = zip(rendered.sampled_mask, rendered.message_indices, strict=True)
    return ExampleRow(ids, [place for place, (on, index) in enumerate(owned) if on and index in wanted and place > 0])


def trained_by_difference(
    renderer: Renderer,
    messages: Messages,
    tools: Tools,
    chosen: Sequence[int],
    stop_ids: Sequence[int],
    ids: Sequence[int],
) -> list[int]:
    """For each reply: what its rendering has after the rendering of what the model was asked, to its stop token.

    Raises ``LudusError(invalid_request)`` where the template rewrites history, so that a reply cannot be found in it.
    """
    places: list[int] = []
    for index in chosen:
        asked = renderer.render_ids(list(messages[:index]), tools=_listed(tools), add_generation_prompt=True)
        answered = renderer.render_ids(list(messages[: index + 1]), tools=_listed(tools), add_generation_prompt=False)
        ends = [place for place in range(len(asked), len(answered)) if answered[place] in stop_ids]
        end = ends[-1] + 1 if ends else len(answered)
        if answered[: len(asked)] != asked or list(ids[:end]) != answered[:end]:
            raise LudusError(
                "invalid_request",
                "the template changes earlier turns: this reply cannot be told from what surrounds it",
                field=f"messages[{index}]",
                expected="a template whose turns stay as they were",
                advice="train the last turn only, or split the conversation",
            )
        places += range(len(asked), end)
    return places


def chosen_turns(messages: Messages, train: Literal["all", "last"]) -> list[int]:
    """Indices of the assistant messages that carry loss: those of ``weight`` 1 (default), or only the last one."""
    replies = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    considered = replies[-1:] if train == "last" else replies
    return [index for index in considered if messages[index].get("weight") != 0]


def _listed(tools: Tools) -> Any:
    return None if tools is None else list(tools)
