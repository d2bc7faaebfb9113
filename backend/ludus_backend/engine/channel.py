"""The engine's end of the pipe: requests come in on a thread of their own, lines go out whole."""

from __future__ import annotations

import json
import os
import queue
import threading
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

from pydantic import BaseModel, ValidationError

from ludus_backend.engine_messages import CANCELLED, REQUEST
from ludus_backend.errors import LudusError
from ludus_backend.protocol import ErrorDetail


def take_streams() -> tuple[BinaryIO, BinaryIO]:
    """Moves stdin and stdout to private descriptors. From then on whatever is printed goes to stderr, and nobody else
    reads a request by mistake.
    """
    source, output = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(source, "rb"), os.fdopen(output, "wb", buffering=0)


class Channel:
    """Reads ``engine_messages`` requests, writes events, results and errors. Writing is safe from any thread."""

    def __init__(self, source: BinaryIO, output: BinaryIO) -> None:
        self._source = source
        self._output = output
        self._lock = threading.Lock()
        self.requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        """Requests in the order they came."""

    def start(self, at_once: Callable[[Any], bool]) -> None:
        """Starts reading. ``at_once(request)`` runs on the reading thread; where it returns True, that was the answer.

        At the end of the input the process ends at once, whatever it is doing: nobody is left to answer, and
        checkpoints appear whole or not at all.
        """
        threading.Thread(target=self._read, args=(at_once,), name="requests", daemon=True).start()

    def event(self, id: int, event: BaseModel) -> None:
        self._send({"id": id, **event.model_dump(by_alias=True)})

    def result(self, id: int, result: BaseModel | dict[str, Any]) -> None:
        body = result.model_dump(mode="json", by_alias=True) if isinstance(result, BaseModel) else result
        self._send({"id": id, "result": body})

    def cancelled(self, id: int) -> None:
        message = "the request was cancelled"
        self._send({"id": id, "error": {"message": message, "type": "ludus_error", "code": CANCELLED}})

    def error(self, id: int, error: BaseException) -> None:
        """Answers with the error; one that is not a ``LudusError`` becomes ``internal``, its stack goes to stderr."""
        if isinstance(error, LudusError):
            detail = error.detail
        else:
            traceback.print_exception(error)
            message = f"{type(error).__name__}: {error}"
            detail = ErrorDetail(code="internal", message=message, advice="the engine's log has the stack")
        self._send({"id": id, "error": detail.model_dump(mode="json", by_alias=True)})

    def _send(self, body: dict[str, Any]) -> None:
        line = json.dumps(body, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            view = memoryview(line)
            while view:
                view = view[self._output.write(view) :]

    def _read(self, at_once: Callable[[Any], bool]) -> None:
        try:
            for line in self._source:
                self._take(line, at_once)
        finally:
            # The gateway is gone, or its pipe is: an engine without it must not live on.
            os._exit(0)

    def _take(self, line: bytes, at_once: Callable[[Any], bool]) -> None:
        try:
            request = REQUEST.validate_json(line)
        except ValidationError as error:
            self._refuse(line, error)
            return
        try:
            if not at_once(request):
                self.requests.put(request)
        except Exception as error:
            self.error(request.id, error)

    def _refuse(self, line: bytes, error: ValidationError) -> None:
        """Answers a request that is not valid; a line without an id has nobody to answer to and is logged."""
        try:
            id = int(json.loads(line)["id"])
        except (ValueError, KeyError, TypeError):
            traceback.print_exception(error)
            return
        first = error.errors(include_url=False)[0]
        self.error(
            id,
            LudusError(
                "invalid_request",
                f"the engine does not understand the request: {first['msg']}",
                field=".".join(str(part) for part in first["loc"]),
                value=first.get("input"),
                advice="gateway and engine must come from one version of this package",
            ),
        )
