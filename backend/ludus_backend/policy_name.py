"""``name@step``, the name of one step of a model: read in one way everywhere, so that a step has one name only."""

from __future__ import annotations

import re

_POLICY = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]{0,127})@(?P<step>0|[1-9][0-9]{0,8})")


def split_policy(policy: str) -> tuple[str, int] | None:
    """Name and step of ``name@step``; None for anything else, ``name@00`` and digits of other scripts included."""
    match = _POLICY.fullmatch(policy)
    return None if match is None else (match["name"], int(match["step"]))
