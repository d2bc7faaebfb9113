"""What the routes share: settings, the engine, models, episodes and jobs of one gateway."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ludus_backend.gateway.engine_client import EngineClient
from ludus_backend.gateway.engine_process import EngineCommand
from ludus_backend.gateway.episodes import Episodes
from ludus_backend.gateway.jobs import Jobs
from ludus_backend.gateway.models import Models


@dataclass(frozen=True)
class Settings:
    """``token``: the bearer token, None: everybody on loopback may call. ``instance``: the starter's nonce."""

    state: Path
    instance: str
    token: str | None
    engine: EngineCommand


class Services:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.engine = EngineClient(settings.engine)
        self.models = Models(self.engine)
        self.engine.recover = self.models.recover
        self.episodes = Episodes(forget=lambda key: self.engine.notify("forget", {"conversation": key}))
        self.jobs = Jobs()
