"""How large and how slow a request body may be."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ludus_backend.errors import LudusError
from ludus_backend.gateway.http_errors import error_response

MEBIBYTE = 1 << 20
_TRAIN_PATH = re.compile(r"/v1/ludus/models/[^/]+/(train|sft)")
_DRAINED_BYTES = 64 * MEBIBYTE
_DRAINED_SECONDS = 2.0


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
        if not declared.isdigit() or int(declared) > limit:
            await self._drain(receive)
            await _refuse(_too_large(limit), None, scope, receive, send)
            return
        pieces: list[bytes] = []
        received = 0
        try:
            async with asyncio.timeout(self._seconds) as deadline:
                async for piece in _pieces(receive):
                    pieces.append(piece)
                    received += len(piece)
                    if received > limit:
                        break
                    deadline.reschedule(deadline.when() + len(piece) / MEBIBYTE)  # type: ignore[operator]
        except TimeoutError:
            await _refuse(_too_slow(received), 408, scope, receive, send)
            return
        except ClientDisconnect:
            return
        if received > limit:
            await self._drain(receive)
            await _refuse(_too_large(limit), None, scope, receive, send)
            return
        await self._app(scope, _replaying(b"".join(pieces), receive), send)

    async def _drain(self, receive: Receive) -> None:
        """Reads on for a moment: a client in the middle of sending would else see a reset instead of the answer."""
        drained = 0
        with suppress(TimeoutError, ClientDisconnect):
            async with asyncio.timeout(_DRAINED_SECONDS):
                async for piece in _pieces(receive):
                    drained += len(piece)
                    if drained > _DRAINED_BYTES:
                        return


async def _pieces(receive: Receive) -> AsyncIterator[bytes]:
    """A body as it arrives. Raises ``ClientDisconnect`` where it never ends."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        more = message.get("more_body", False)
        yield message.get("body", b"")


async def _refuse(error: LudusError, status: int | None, scope: Scope, receive: Receive, send: Send) -> None:
    await error_response(error, status, {"connection": "close"})(scope, receive, send)


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
        advice="send fewer groups or examples in one request, or a shorter history",
    )


def _too_slow(received: int) -> LudusError:
    return LudusError(
        "invalid_request",
        "The request body came too slowly",
        field="body",
        value=f"{received} bytes so far",
        expected="the whole body within 30 seconds, plus one second per MiB",
    )
