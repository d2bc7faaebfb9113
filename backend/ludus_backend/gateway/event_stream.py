"""Server-sent events over ASGI, ended at once when the client goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


def event(data: Any, event_id: int | None = None) -> bytes:
    """One event: strict JSON on one ``data`` line, after an ``id`` line where it has one."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    head = "" if event_id is None else f"id: {event_id}\n"
    return f"{head}data: {text}\n\n".encode()


class EventStream(Response):
    """Sends what ``events`` yields. :meth:`begin` awaits the first one: an error until then is plain HTTP.

    When the client disconnects, the iterator is closed where it stands, so that its ``finally`` blocks run.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], first: bytes | None) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events, self._first = events, first

    @classmethod
    async def begin(cls, events: AsyncIterator[bytes]) -> EventStream:
        return cls(events, await anext(events, None))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send_all(send))
        gone = asyncio.create_task(until_disconnected(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)
            await self._events.aclose()  # type: ignore[attr-defined]
        if sending.done() and not sending.cancelled():
            sending.result()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if self._first is not None:
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
        async for piece in self._events:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def until_disconnected(receive: Receive) -> None:
    """Returns when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
