"""Starts the engine, which speaks ``engine_messages`` on stdin and stdout.

python -m ludus_backend.engine --state DIR [--threads N] [--kv-bytes N]
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from ludus_backend.engine.channel import Channel, take_streams
from ludus_backend.engine.parent import die_with_parent

_GIB = 1 << 30


def main() -> int:
    """Runs until ``shutdown`` or the end of stdin. Exit status 0."""
    die_with_parent()
    # Ctrl-C reaches the whole process group; the gateway decides what becomes of its engine.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Before anything else is imported: whatever a library prints must not land between two lines of the protocol.
    source, output = take_streams()
    parser = argparse.ArgumentParser(prog="ludus_backend.engine")
    parser.add_argument("--state", type=Path, required=True, help="state root; models lie in DIR/models")
    parser.add_argument("--threads", type=int, default=0, help="threads of one torch operation (0: torch's own choice)")
    parser.add_argument(
        "--kv-bytes",
        type=int,
        default=os.environ.get("LUDUS_KV_BYTES") or str(_GIB),
        help="memory for keys and values (default: LUDUS_KV_BYTES, else 1 GiB)",
    )
    arguments = parser.parse_args()

    import torch

    from ludus_backend.engine.loop import EngineLoop
    from ludus_backend.engine.models import EngineModels

    if arguments.threads > 0:
        torch.set_num_threads(arguments.threads)
    EngineLoop(Channel(source, output), EngineModels(arguments.state, arguments.kv_bytes)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
