"""How large and how slow a request body may be."""

from __future__ import annotations

import asyncio
import re
import time

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ludus_backend.errors import LudusError
from ludus_backend.gateway.http_errors import error_response

MEBIBYTE = 1 << 20
_TRAIN_PATH = re.compile(r"/v1/ludus/models/[^/]+/train")
_DRAINED_BYTES = 64 * MEBIBYTE
"""Of a refused body this much is still read: a client that is sending would else see a reset instead of the answer."""


class BodyLimits:
    """ASGI middleware: reads each body whole, up to ``train_bytes`` for training and ``other_bytes`` elsewhere.

    A body has ``seconds`` plus one second per MiB received; what is slower gets 408, what is larger 413.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        train_bytes: int = 256 * MEBIBYTE,
        other_bytes: int = 16 * MEBIBYTE,
        seconds: float = 30.0,
    ) -> None:
        self._app, self._seconds = app, seconds
        self._train_bytes, self._other_bytes = train_bytes, other_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._train_bytes if _TRAIN_PATH.fullmatch(scope["path"]) else self._other_bytes
        declared = Headers(scope=scope).get("content-length", "0")
        pieces: list[bytes] = []
        received = 0
        started = time.monotonic()
        too_large = not declared.isdigit() or int(declared) > limit
        while True:
            try:
                left = started + self._seconds + received / MEBIBYTE - time.monotonic()
                async with asyncio.timeout(max(left, 0)):
                    message = await receive()
            except TimeoutError:
                refused = error_response(_too_slow(received), 408, {"connection": "close"})
                await refused(scope, receive, send)
                return
            if message["type"] == "http.disconnect":
                return
            received += len(message.get("body", b""))
            too_large = too_large or received > limit
            if not too_large:
                pieces.append(message.get("body", b""))
            if not message.get("more_body", False) or (too_large and received > limit + _DRAINED_BYTES):
                break
        if too_large:
            await error_response(_too_large(limit), headers={"connection": "close"})(scope, receive, send)
            return
        await self._app(scope, _replaying(b"".join(pieces), receive), send)


def _replaying(body: bytes, receive: Receive) -> Receive:
    """The whole body as one message, then whatever the connection says (its end)."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _too_large(limit: int) -> LudusError:
    return LudusError(
        "too_large",
        "The request body is too large",
        field="body",
        expected=f"at most {limit} bytes",
        advice="send fewer groups in one update, or a shorter history",
    )


def _too_slow(received: int) -> LudusError:
    return LudusError(
        "invalid_request",
        "The request body came too slowly",
        field="body",
        value=f"{received} bytes so far",
        expected="the whole body within 30 seconds, plus one second per MiB",
    )
