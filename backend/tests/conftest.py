"""The gateways that tests share. pytest starts one only for tests that ask for it by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gateway_support import Gateway, register, running_gateway

_COUNTER = iter(range(1_000_000))


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One gateway for all tests that leave its model ``demo`` and its engine as they are."""
    with running_gateway(tmp_path_factory.mktemp("gateway")) as running:
        register(running)
        yield running


@pytest.fixture(scope="module")
def own_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway for one module, whose tests train ``demo`` or kill the engine."""
    with running_gateway(tmp_path_factory.mktemp("gateway")) as running:
        register(running)
        yield running


@pytest.fixture
def episode(gateway: Gateway) -> Iterator[str]:
    """A fresh episode's id."""
    opened = gateway.post("/v1/ludus/episodes", {"id": f"run/episode-{next(_COUNTER)}"}).json()["id"]
    yield opened
    gateway.client.delete(f"/v1/ludus/episodes/{opened}")
