"""How much memory this process takes."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_RSS_UNIT = 1 if sys.platform == "darwin" else 1024
"""``ru_maxrss`` is in bytes on macOS, in KiB on Linux."""


def peak_rss_bytes() -> int:
    """Largest resident memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT


def rss_bytes() -> int:
    """Resident memory now; the peak where the system does not say."""
    status = Path("/proc/self/statm")
    if not status.exists():
        return peak_rss_bytes()
    return int(status.read_text(encoding="ascii").split()[1]) * resource.getpagesize()
