"""An engine must not outlive the gateway that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


def die_with_parent() -> None:
    """On Linux the kernel kills this process when its parent ends, however that happens.

    Elsewhere the end of stdin must do: the loop ends there on every system.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        # It ended in between: no signal will come any more.
        os._exit(1)
