"""What the gateway and the engine say to each other: one JSON object a line, on the engine's stdin and stdout.

Gateway to engine: a ``Request`` (``{"id": 7, "op": "generate", ...}``). Engine to gateway, for that ``id``: any number
of ``{"id", "event", ...}``, then exactly one ``{"id", "result": {...}}`` or ``{"id", "error": ErrorDetail}``.
JSON is strict: no NaN, no Infinity. This module imports no torch, so that the gateway can use it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.alias_generators import to_camel

from ludus_backend.protocol import (
    DeleteCheckpoints,
    ExportModel,
    ForkModel,
    RegisterModel,
    SftConfig,
    TokenId,
    TrainRequest,
)

CANCELLED = "cancelled"
"""``error.code`` of a generate that a cancel ended. Only spoken between gateway and engine, never on HTTP."""


class _Message(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")

    id: int
    """Chosen by the gateway, never used twice in the life of one engine."""

    def line(self) -> str:
        """This message as its line on the wire, newline included."""
        return self.model_dump_json(by_alias=True) + "\n"


class Register(_Message):
    """Loads the base model where none is loaded, makes or resumes the adapter. Result: ``RegisterResult``."""

    op: Literal["register"] = "register"
    model: RegisterModel


class Generate(_Message):
    """Samples one continuation of ``promptIds``. Result: ``GenerateResult``.

    Errors: ``context_length_exceeded``, ``unknown_model``, ``invalid_request``, ``too_large``, or ``cancelled``.
    """

    op: Literal["generate"] = "generate"
    policy: str
    """``name@step``."""
    conversation: str | None = None
    """Whose keys and values to keep for the next turn, until ``forget`` or until memory is short."""
    prompt_ids: Annotated[list[TokenId], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)]
    """Capped by the engine to what fits the model's context."""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """0: greedy, log-probabilities at temperature 1."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: int = 0
    """Same seed, ids and policy: same sample, whatever else is in the batch (up to float noise at a boundary)."""
    stop_ids: list[TokenId] = Field(default_factory=list)
    """A sampled stop id ends the reply and is part of it."""
    stop: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    """The reply ends with the token that completes one of these in its text."""
    ignore_eos: bool = False
    """``stopIds`` do not stop: the reply has exactly ``maxTokens`` tokens (benchmarks)."""
    stream: bool = False
    """Also send ``TokensEvent`` as tokens are sampled."""
    n: Literal[1] = 1


class Cancel(_Message):
    """Ends the generate ``target`` at its next token. Result: ``{"cancelled": bool}``; the target answers by itself."""

    op: Literal["cancel"] = "cancel"
    target: int


class Forget(_Message):
    """Drops the keys and values of a conversation. Result: ``{}``."""

    op: Literal["forget"] = "forget"
    conversation: str


class Train(_Message):
    """One update. Events: ``ProgressEvent``. Result: ``TrainResult``; its policy can be sampled by then."""

    op: Literal["train"] = "train"
    name: str
    request: TrainRequest


class ListCheckpoints(_Message):
    """Result: ``protocol.Checkpoints``."""

    op: Literal["checkpoints"] = "checkpoints"
    name: str


class SftRow(BaseModel):
    """One conversation as ids; the tokens at the places ``trained`` carry loss (ascending, none of them 0)."""

    model_config = ConfigDict(extra="forbid")

    ids: Annotated[list[TokenId], Field(min_length=2)]
    trained: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]


class SftUpdate(BaseModel):
    """One update of a supervised fine-tuning; compare-and-set and idempotent like ``TrainRequest``."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")

    key: str
    expected_step: int
    rows: Annotated[list[SftRow], Field(min_length=1)]
    config: SftConfig
    """``learningRate`` is that of this update: the schedule is already in it."""


class Sft(_Message):
    """One supervised update. Events: ``ProgressEvent``. Result: ``TrainResult``; its policy can be sampled by then."""

    op: Literal["sft"] = "sft"
    name: str
    request: SftUpdate


class Fork(_Message):
    """Makes a model from a step of another and publishes it. Result: ``RegisterResult``."""

    op: Literal["fork"] = "fork"
    fork: ForkModel


class Delete(_Message):
    """Deletes checkpoints. Result: ``protocol.DeletedCheckpoints``."""

    op: Literal["delete"] = "delete"
    name: str
    request: DeleteCheckpoints
    leased: list[int]
    """Steps that episodes hold."""
    newest_known: int
    """The newest step the gateway knew: it and later ones may have been leased since."""


class Export(_Message):
    """Writes a step for use elsewhere. Result: ``protocol.ExportedModel``."""

    op: Literal["export"] = "export"
    name: str
    request: ExportModel


class Ping(_Message):
    """Answered at once, even while the engine trains. Result: ``PingResult``."""

    op: Literal["ping"] = "ping"


class Shutdown(_Message):
    """Result: ``{}``; then the process ends with status 0."""

    op: Literal["shutdown"] = "shutdown"


Request = Annotated[
    Register | Generate | Cancel | Forget | Train | Sft | ListCheckpoints | Fork | Delete | Export | Ping | Shutdown,
    Field(discriminator="op"),
]

REQUEST: TypeAdapter[Any] = TypeAdapter(Request)
"""Reads one line: ``REQUEST.validate_json(line)``."""


class RegisterResult(BaseModel):
    info: dict[str, Any]
    """``protocol.ModelInfo`` in its wire form."""
    tokenizer: str
    """Folder that holds ``tokenizer.json``."""
    stop_ids: list[int]
    """Ids that end a reply of this model."""


class GenerateResult(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    ids: list[int]
    logprobs: list[float]
    """One per id, natural log, of the processed distribution at the sampling temperature."""
    finish: Literal["stop", "length"]
    cached_tokens: int
    """Prompt tokens whose keys and values were there already."""


class TokensEvent(BaseModel):
    event: Literal["tokens"] = "tokens"
    ids: list[int]
    logprobs: list[float]


class ProgressEvent(BaseModel):
    event: Literal["progress"] = "progress"
    done: int
    total: int
    phase: str


class PingResult(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    pid: int
    rss_bytes: int
    """Resident memory now."""
    peak_rss_bytes: int
