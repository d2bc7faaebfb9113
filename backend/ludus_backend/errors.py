"""The one exception of the backend: an error with a kind, the offending field and value, and a next step."""

from __future__ import annotations

from typing import Any

from ludus_backend.protocol import ErrorCode, ErrorDetail

_LONGEST_VALUE = 200
"""Characters of an offending value that are shown: enough to recognise it, too few to flood a log."""


class LudusError(Exception):
    """A failure that a person or a client can act on.

    ``code`` is the closed kind of the protocol; ``message`` one sentence; ``field`` a path such as
    ``groups[2].trajectories[0].exchanges[1].logprobs``; ``value`` what was found (shortened to 200 characters);
    ``expected`` what would have been right; ``advice`` what to do next.
    """

    detail: ErrorDetail

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        field: str | None = None,
        value: Any = None,
        expected: str | None = None,
        advice: str | None = None,
    ) -> None:
        self.detail = ErrorDetail(
            code=code,
            message=message,
            field=field,
            value=None if value is None else _shortened(str(value)),
            expected=expected,
            advice=advice,
        )
        super().__init__(message)

    @classmethod
    def from_detail(cls, detail: ErrorDetail) -> LudusError:
        """The exception again, on the other side of a process boundary."""
        error = cls(detail.code, detail.message)
        error.detail = detail
        return error

    def __str__(self) -> str:
        detail = self.detail
        parts = [detail.message]
        if detail.field is not None:
            parts.append(f"field: {detail.field}")
        if detail.value is not None:
            parts.append(f"value: {detail.value}")
        if detail.expected is not None:
            parts.append(f"expected: {detail.expected}")
        if detail.advice is not None:
            parts.append(f"advice: {detail.advice}")
        return "; ".join(parts)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."
