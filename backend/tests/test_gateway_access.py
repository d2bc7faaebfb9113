"""Who may call, and how much and how slowly they may send."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest
from gateway_support import TOKEN

from ludus_backend.gateway.app import create_app
from ludus_backend.gateway.auth import Authentication
from ludus_backend.gateway.body_limits import MEBIBYTE, BodyLimits
from ludus_backend.gateway.engine_process import EngineCommand
from ludus_backend.gateway.episodes import Episodes
from ludus_backend.gateway.services import Settings

PATHS = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/demo"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/ludus/capabilities"),
    ("POST", "/v1/ludus/episodes"),
    ("DELETE", "/v1/ludus/episodes/x"),
    ("POST", "/v1/ludus/models"),
    ("GET", "/v1/ludus/models/demo"),
    ("GET", "/v1/ludus/models/demo/checkpoints"),
    ("POST", "/v1/ludus/models/demo/train"),
    ("POST", "/v1/ludus/models/demo/sft"),
    ("POST", "/v1/ludus/models/demo/export"),
    ("POST", "/v1/ludus/models/demo/checkpoints/delete"),
    ("POST", "/v1/ludus/forks"),
    ("GET", "/v1/ludus/jobs/x/events"),
    ("GET", "/openapi.json"),
    ("GET", "/nothing"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize("key", [None, "wrong", "", TOKEN + "x", "ludus-episode-made-up", "ünïcode"])
def test_nothing_but_health_opens_without_the_right_token(gateway, method, path, key) -> None:
    header = {} if key is None else {b"authorization": (b"Bearer " + key.encode()).strip()}
    response = gateway.connect(None).request(method, path, headers=header)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "unauthorized"
    assert response.headers["www-authenticate"] == "Bearer"
    assert TOKEN not in response.text


def test_health_is_open_and_says_whose_child_it_is(gateway) -> None:
    health = gateway.connect(None).get("/health").json()
    assert (health["instance"], health["protocol"], health["status"]) == ("nonce", 1, "ok")
    assert isinstance(health["enginePid"], int)


def test_the_scheme_is_bearer_in_any_case_and_nothing_else(gateway) -> None:
    client = gateway.connect(None)
    assert client.get("/v1/models", headers={"authorization": f"bearer {TOKEN}"}).status_code == 200
    assert client.get("/v1/models", headers={"authorization": f"Basic {TOKEN}"}).status_code == 401


def test_capabilities_name_losses_and_options(gateway) -> None:
    capabilities = gateway.client.get("/v1/ludus/capabilities").json()
    assert "cispo" in capabilities["losses"]
    assert {"learningRate", "entropyBonus", "maxTokensPerMicroBatch"} <= set(capabilities["options"])


def test_a_body_above_the_limit_is_413_also_without_a_declared_length(gateway) -> None:
    large = b"x" * (16 * MEBIBYTE + 1)
    declared = gateway.client.post("/v1/chat/completions", content=large)
    assert (declared.status_code, declared.json()["error"]["code"]) == (413, "too_large")
    chunked = gateway.client.post("/v1/chat/completions", content=iter([large[: 8 * MEBIBYTE]] * 3))
    assert (chunked.status_code, chunked.json()["error"]["code"]) == (413, "too_large")
    # The same size is nothing special for training: there it is only not JSON.
    assert gateway.client.post("/v1/ludus/models/demo/train", content=large).status_code == 400


def test_an_enormous_declared_length_is_refused_without_waiting_for_it(gateway) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as connection:
        head = f"POST /v1/ludus/models/demo/train HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        connection.sendall(f"{head}Content-Length: {1 << 40}\r\n\r\n".encode())
        assert b"413" in connection.recv(65_536).split(b"\r\n")[0]


def test_a_body_that_trickles_in_is_given_up() -> None:
    """One byte every 10 ms, a limit of 0.1 s: the application behind is never called."""
    sent: list[dict] = []

    async def receive() -> dict:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def send(message: dict) -> None:
        sent.append(message)

    async def never(*_: object) -> None:
        raise AssertionError("a request without its body must not get through")

    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": []}
    asyncio.run(BodyLimits(never, seconds=0.1)(scope, receive, send))
    assert sent[0]["status"] == 408
    assert b"too slowly" in sent[1]["body"]


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({"host": "127.0.0.1:8000"}, False),
        ({"host": "localhost"}, False),
        ({"host": "[::1]:8000"}, False),
        ({"host": "localhost:1", "origin": "http://localhost:5173"}, False),
        ({"host": "localhost:1", "origin": "https://evil.example"}, True),
        ({"host": "rebound.example:8000"}, True),
    ],
)
def test_without_a_token_a_web_page_from_elsewhere_gets_nothing(headers, refused) -> None:
    reached: list[int] = []

    async def application(scope: dict, receive: object, send: object) -> None:
        reached.append(200)

    async def send(message: dict) -> None:
        if message["type"] == "http.response.start":
            reached.append(message["status"])

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": raw}
    guarded = Authentication(application, token=None, episodes=Episodes(lambda _: None))
    asyncio.run(guarded(scope, None, send))
    assert reached == [401 if refused else 200]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/ludus/models/demo/export", {"destination": "/tmp/model"}, "destination"),
        ("/v1/ludus/forks", {"name": "fork", "path": "/tmp/run"}, "path"),
    ],
)
def test_a_backend_without_a_token_takes_no_paths(tmp_path, path, body, field) -> None:
    app = create_app(Settings(tmp_path, "nonce", None, EngineCommand(())))

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.post(path, json=body)

    response = asyncio.run(ask())
    assert (response.status_code, response.json()["error"]["field"]) == (401, field)
