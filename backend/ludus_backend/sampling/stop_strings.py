"""Stop strings: does the newest token complete one?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_MARGIN = 4
"""Tokens before the window that may hold the rest of a split character or a space that a decoder strips."""


class StopStrings:
    """Watches the text of one reply. Only its tail is decoded: each token is at least one byte of text."""

    def __init__(self, stops: Sequence[str], decode: Callable[[list[int]], str]) -> None:
        """``decode`` turns ids into text, special tokens included."""
        self._stops = list(stops)
        self._decode = decode
        self._window = _MARGIN + max((len(stop.encode()) for stop in stops), default=0)

    def completed(self, ids: list[int]) -> bool:
        """Whether the text of the reply's ``ids`` now contains a stop string. To be asked after every token."""
        if not self._stops:
            return False
        tail = self._decode(ids[-self._window :])
        return any(stop in tail for stop in self._stops)
