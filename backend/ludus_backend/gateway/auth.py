"""Who calls: the owner with the bearer token, or an episode with the key that was minted for it."""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import urlsplit

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ludus_backend.errors import LudusError
from ludus_backend.gateway.episodes import KEY_PREFIX, Episodes, EpisodeState
from ludus_backend.gateway.http_errors import error_response
from ludus_backend.protocol import EPISODE_HEADER

_OPEN_PATHS = {"/health"}
_EPISODE_PATHS = {"/v1/chat/completions", "/v1/models"}
"""What an episode's key opens: an agent that was handed one can sample, not train or read other episodes."""
_KEY_EPISODE = "ludus_key_episode"


class Authentication:
    """ASGI middleware in front of everything: no byte of a body is read for a caller without a right to send it."""

    def __init__(self, app: ASGIApp, *, token: str | None, episodes: Episodes) -> None:
        self._app, self._token, self._episodes = app, token, episodes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _OPEN_PATHS:
            refused = self._refusal(scope)
            if refused is not None:
                response = error_response(refused, headers={"www-authenticate": "Bearer", "connection": "close"})
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> LudusError | None:
        scheme, _, sent = Headers(scope=scope).get("authorization", "").partition(" ")
        sent = sent.strip() if scheme.lower() == "bearer" else ""
        if sent.startswith(KEY_PREFIX):
            episode = self._episodes.by_key(sent)
            if episode is None:
                return _unauthorized("This episode key is not valid", "its episode was closed, or idle too long")
            if scope["path"] not in _EPISODE_PATHS:
                return _unauthorized("An episode key opens only sampling", "use the backend's bearer token")
            scope.setdefault("state", {})[_KEY_EPISODE] = episode
            return None
        if self._token is None:
            return _refuse_web_pages(Headers(scope=scope))
        if hmac.compare_digest(sent.encode(), self._token.encode()):
            return None
        problem = "The bearer token is wrong" if sent else "A bearer token is required"
        return _unauthorized(problem, "send the header 'Authorization: Bearer <token>' with the token of the start")


def _refuse_web_pages(headers: Headers) -> LudusError | None:
    """Without a token, loopback is the only fence, and a browser on this machine is inside it: a page from elsewhere
    shows by its ``Origin``, or, with a name that it made resolve to loopback, by its ``Host``."""
    for name in ("host", "origin"):
        url = urlsplit(headers.get(name, "") if name == "origin" else f"//{headers.get(name, '')}")
        if url.netloc and not is_loopback(url.hostname or ""):
            return _unauthorized("A web page may not call a backend without a token", "start it with --token-env")
    return None


def is_loopback(host: str) -> bool:
    """Whether only this machine can be reached under ``host``."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def episode_of(request: Request, episodes: Episodes) -> EpisodeState | None:
    """The scope of a chat completion: the header, else the episode of the caller's key, else none.

    A key that says one episode and a header that says another is refused: ids must never cross episodes.
    """
    named = request.headers.get(EPISODE_HEADER)
    of_key: EpisodeState | None = getattr(request.state, _KEY_EPISODE, None)
    if named is None:
        return of_key
    if not 1 <= len(named) <= 256:
        raise LudusError(
            "invalid_request",
            "This is not an episode id",
            field=EPISODE_HEADER,
            value=named,
            expected="1 to 256 characters",
        )
    if of_key is not None and of_key.id != named:
        raise LudusError(
            "unauthorized",
            "The key belongs to another episode than the header names",
            field=EPISODE_HEADER,
            value=named,
            expected=of_key.id,
            advice="leave the header out: the key already says which episode it is",
        )
    return of_key or episodes.by_id(named)


def _unauthorized(message: str, advice: str) -> LudusError:
    return LudusError("unauthorized", message, field="Authorization", advice=advice)
