"""The process: says where it listens, refuses to be open to the world, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess

import httpx
import pytest
from gateway_support import command, environment, is_there, until

from ludus_backend.serve import ServeOptions, serve_forever


def start(tmp_path, *arguments: str, options: str = "", stdin=subprocess.PIPE, **more: str) -> subprocess.Popen:
    return subprocess.Popen(
        command(tmp_path / "state", *arguments),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path / "diary", options, **more),
        start_new_session=True,
    )


def engine_of(port: int) -> int:
    def pid() -> int | None:
        health = httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).json()
        return health["enginePid"] if health["status"] == "ok" else None

    return until(pid)


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


ENDINGS = {
    "stdin closed": lambda process: process.stdin.close(),
    "SIGTERM": lambda process: process.send_signal(signal.SIGTERM),
    "SIGINT": lambda process: process.send_signal(signal.SIGINT),
    "SIGINT to the group": lambda process: os.killpg(process.pid, signal.SIGINT),
    "SIGKILL": lambda process: process.kill(),
}


@pytest.mark.parametrize(
    ("ending", "options"),
    [(ending, "") for ending in ENDINGS] + [("stdin closed", "--stubborn")],
)
def test_proc_02_nothing_is_left_however_it_ends(tmp_path, ending, options) -> None:
    process = start(tmp_path, "--token-env", "LUDUS_TOKEN", "--parent-stdin", options=options)
    line = json.loads(process.stdout.readline())
    assert line["pid"] == process.pid
    engine = engine_of(line["port"])
    ENDINGS[ending](process)
    code = process.wait(timeout=10)
    if ending != "SIGKILL":
        assert code == 0
        assert process.stdout.read() == b""
    until(lambda: not is_there(engine), seconds=5)
    assert not is_open(line["port"])


def test_proc_02_a_parent_that_is_killed_takes_it_along(tmp_path) -> None:
    """The parent holds the other end of standard input and nothing else; SIGKILL gives it no chance to say goodbye."""
    reader, writer = os.pipe()
    parent = subprocess.Popen(["sleep", "60"], pass_fds=[writer])
    os.close(writer)
    process = start(tmp_path, "--token-env", "LUDUS_TOKEN", "--parent-stdin", stdin=reader)
    os.close(reader)
    line = json.loads(process.stdout.readline())
    engine = engine_of(line["port"])
    parent.kill()
    parent.wait()
    assert process.wait(timeout=10) == 0
    assert not is_there(engine)


def test_proc_02_a_request_in_flight_does_not_hold_up_the_end(tmp_path) -> None:
    process = start(tmp_path, "--parent-stdin")
    port = json.loads(process.stdout.readline())["port"]
    engine_of(port)
    base = f"http://127.0.0.1:{port}"
    httpx.post(
        f"{base}/v1/ludus/models", json={"name": "demo", "base": {"source": "random"}}, trust_env=False, timeout=20
    )
    with socket.create_connection(("127.0.0.1", port)) as connection:
        body = json.dumps({"model": "demo", "messages": [{"role": "user", "content": "slow"}], "stream": True}).encode()
        connection.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        assert b"200" in connection.recv(1000)
        process.stdin.close()
        assert process.wait(timeout=10) == 0
        rest = b""
        while piece := connection.recv(65_536):
            rest += piece
        assert b"engine_failed" in rest


def refusal(capsys, state, **options) -> dict:
    """What a start that must fail prints on standard output."""
    defaults = {
        "host": "127.0.0.1",
        "port": 0,
        "instance": "",
        "token_env": None,
        "threads": None,
        "parent_stdin": False,
    }
    assert serve_forever(ServeOptions(**{**defaults, **options, "state": state})) == 2
    printed = capsys.readouterr()
    assert "cannot start" in printed.err
    return json.loads(printed.out)["error"]


def test_proc_01_a_taken_port_is_a_typed_error_that_advises_port_zero(tmp_path, capsys) -> None:
    with socket.socket() as occupant:
        occupant.bind(("127.0.0.1", 0))
        occupant.listen()
        taken = occupant.getsockname()[1]
        error = refusal(capsys, tmp_path, port=taken)
    assert (error["field"], error["value"]) == ("--port", str(taken))
    assert "--port 0" in error["advice"]
    assert refusal(capsys, tmp_path, port=70_000)["field"] == "--port"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"host": "0.0.0.0"}, "--host"),
        ({"host": "::"}, "--host"),
        ({"host": "example.invalid"}, "--host"),
        ({"token_env": "EMPTY"}, "--token-env"),
        ({"token_env": "NO_SUCH_VARIABLE"}, "--token-env"),
    ],
)
def test_it_refuses_to_be_open_to_others_without_a_token(tmp_path, capsys, monkeypatch, options, field) -> None:
    monkeypatch.setenv("EMPTY", "")
    error = refusal(capsys, tmp_path, **options)
    assert (error["code"], error["field"]) == ("unauthorized", field)


def test_with_a_token_it_may_listen_widely_and_the_token_shows_nowhere(tmp_path) -> None:
    process = start(tmp_path, "--host", "0.0.0.0", "--token-env", "LUDUS_TOKEN", "--parent-stdin")
    port = json.loads(process.stdout.readline())["port"]
    engine = engine_of(port)
    models = f"http://127.0.0.1:{port}/v1/models"
    assert httpx.get(models, trust_env=False).status_code == 401
    assert httpx.get(models, headers={"authorization": "Bearer sesame"}, trust_env=False).status_code == 200
    with open(f"/proc/{process.pid}/cmdline", "rb") as ours, open(f"/proc/{engine}/environ", "rb") as theirs:
        assert b"sesame" not in ours.read() and b"sesame" not in theirs.read()
    process.stdin.close()
    process.wait(timeout=10)
    assert b"sesame" not in process.stderr.read()
