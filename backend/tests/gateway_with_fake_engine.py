"""``python -m ludus_backend serve``, with the fake engine in the real one's place; takes the same arguments."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ludus_backend.__main__ import main
from ludus_backend.gateway.engine_process import EngineCommand

FAKE = str(Path(__file__).with_name("fake_engine.py"))
options = os.environ.get("LUDUS_FAKE_OPTIONS", "").split()
EngineCommand.embedded = classmethod(  # type: ignore[method-assign,assignment]
    lambda cls, state, threads, secret: cls((sys.executable, FAKE, *options), secret)
)
sys.exit(main())
