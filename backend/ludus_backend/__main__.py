"""``python -m ludus_backend``: ``serve`` starts the gateway and its engine, ``openapi`` prints the protocol."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ludus_backend", description="The Python side of Ludus.")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="start the backend; prints one line of JSON when it listens")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: loopback only)")
    serve.add_argument("--port", type=int, default=0, help="port; 0 (default) lets the system choose a free one")
    serve.add_argument("--state", type=Path, required=True, help="folder of models and checkpoints")
    serve.add_argument("--instance", default="", help="nonce that /health repeats, so that a starter knows its child")
    serve.add_argument("--token-env", help="name of the environment variable that holds the bearer token")
    serve.add_argument("--threads", type=int, help="CPU threads of the engine (default: its own choice)")
    serve.add_argument("--parent-stdin", action="store_true", help="end when standard input ends")
    commands.add_parser("openapi", help="print the OpenAPI document of the protocol")
    chosen = parser.parse_args(arguments)
    if chosen.command == "openapi":
        return _print_openapi()
    from ludus_backend.serve import ServeOptions, serve_forever

    return serve_forever(
        ServeOptions(
            host=chosen.host,
            port=chosen.port,
            state=chosen.state,
            instance=chosen.instance,
            token_env=chosen.token_env,
            threads=chosen.threads,
            parent_stdin=chosen.parent_stdin,
        )
    )


def _print_openapi() -> int:
    from ludus_backend.gateway.app import create_app
    from ludus_backend.gateway.engine_process import EngineCommand
    from ludus_backend.gateway.services import Settings

    app = create_app(Settings(Path(), "", None, EngineCommand(())))
    print(json.dumps(app.openapi(), indent=2, sort_keys=True, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
