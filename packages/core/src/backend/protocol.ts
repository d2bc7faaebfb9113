/**
 * The wire protocol, client side: one Schema per body of `backend/ludus_backend/protocol.py`, tested both ways against
 * the committed `backend/openapi.json` and the running server. Replies are decoded tolerantly (unknown fields pass),
 * requests are strict.
 */
import { Schema } from "effect"

export const PROTOCOL_VERSION = 1
export const EPISODE_HEADER = "x-ludus-episode"

/** Names that can safely become folders on the backend's side. */
export const ModelName = Schema.String.check(
  Schema.isPattern(/^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/u, {
    message: "a name of letters, digits, '.', '_' and '-' (at most 128, starting with a letter or digit)"
  })
)

export const ErrorDetail = Schema.Struct({
  message: Schema.String,
  code: Schema.optionalKey(Schema.NullOr(Schema.String)),
  field: Schema.optionalKey(Schema.NullOr(Schema.String)),
  value: Schema.optionalKey(Schema.NullOr(Schema.String)),
  expected: Schema.optionalKey(Schema.NullOr(Schema.String)),
  advice: Schema.optionalKey(Schema.NullOr(Schema.String))
})
export type ErrorDetail = typeof ErrorDetail.Type
export const ErrorBody = Schema.Struct({ error: ErrorDetail })

export const Health = Schema.Struct({
  status: Schema.Literals(["ok", "starting", "failed"]),
  protocol: Schema.Int,
  version: Schema.String,
  instance: Schema.String,
  engine: Schema.Literals(["embedded", "vllm"]),
  enginePid: Schema.optionalKey(Schema.NullOr(Schema.Int)),
  detail: Schema.optionalKey(Schema.NullOr(Schema.String))
})
export type Health = typeof Health.Type

export const Capabilities = Schema.Struct({
  protocol: Schema.Int,
  engine: Schema.Literals(["embedded", "vllm"]),
  losses: Schema.Array(Schema.String),
  options: Schema.Array(Schema.String),
  deterministic: Schema.Boolean
})
export type Capabilities = typeof Capabilities.Type

/** Which weights to start from; see the Python model of the same name for the fields. */
export const BaseModelSpec = Schema.Struct({
  source: Schema.Literals(["bundled", "hub", "path", "random"]),
  id: Schema.optionalKey(Schema.NullOr(Schema.String)),
  revision: Schema.optionalKey(Schema.NullOr(Schema.String)),
  contextLength: Schema.optionalKey(Schema.NullOr(Schema.Int)),
  renderer: Schema.optionalKey(Schema.NullOr(Schema.String)),
  chatTemplate: Schema.optionalKey(Schema.Record(Schema.String, Schema.Unknown))
})
export type BaseModelSpec = typeof BaseModelSpec.Type

export const LoraSpec = Schema.Struct({
  rank: Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 512 })),
  alpha: Schema.Finite.check(Schema.isGreaterThan(0)),
  dropout: Schema.optionalKey(Schema.Finite),
  targetModules: Schema.optionalKey(Schema.Union([Schema.String, Schema.Array(Schema.String)]))
})
export type LoraSpec = typeof LoraSpec.Type

export const RegisterModel = Schema.Struct({ name: ModelName, base: BaseModelSpec, lora: LoraSpec, seed: Schema.Int })
export type RegisterModel = typeof RegisterModel.Type

export const ModelInfo = Schema.Struct({
  name: Schema.String,
  step: Schema.Natural,
  steps: Schema.Array(Schema.Natural),
  base: BaseModelSpec,
  lora: LoraSpec,
  contextLength: Schema.Natural,
  parameters: Schema.Natural,
  resumed: Schema.Boolean,
  checkpoint: Schema.String,
  notices: Schema.Array(Schema.String)
})
export type ModelInfo = typeof ModelInfo.Type

export const Checkpoint = Schema.Struct({
  step: Schema.Natural,
  path: Schema.String,
  key: Schema.NullOr(Schema.String),
  metrics: Schema.Record(Schema.String, Schema.Finite)
})
export type Checkpoint = typeof Checkpoint.Type
export const Checkpoints = Schema.Struct({ checkpoints: Schema.Array(Checkpoint) })

export const EpisodeHandle = Schema.Struct({ id: Schema.String, key: Schema.String })
export type EpisodeHandle = typeof EpisodeHandle.Type

/** `ludus` in a chat completion. */
export const LudusReply = Schema.Struct({
  exchange: Schema.String,
  parent: Schema.NullOr(Schema.String),
  policy: Schema.String,
  prefixHash: Schema.String,
  rendered: Schema.Literals(["first", "bridged", "unscoped", "forked"])
})
export type LudusReply = typeof LudusReply.Type

/** One model call as the trainer needs it. */
export const TrainExchange = Schema.Struct({
  id: Schema.String,
  parent: Schema.NullOr(Schema.String),
  prefixHash: Schema.String,
  promptIds: Schema.Array(Schema.Natural),
  sampledIds: Schema.Array(Schema.Natural),
  logprobs: Schema.Array(Schema.Finite),
  temperature: Schema.Finite,
  policy: Schema.String,
  trained: Schema.Boolean,
  returnToGo: Schema.optionalKey(Schema.Finite)
})
export type TrainExchange = typeof TrainExchange.Type

export const TrainTrajectory = Schema.Struct({
  id: Schema.String,
  reward: Schema.Finite,
  exchanges: Schema.Array(TrainExchange)
})

export const TrainGroup = Schema.Struct({
  id: Schema.String,
  trajectories: Schema.Array(TrainTrajectory),
  dropped: Schema.NullOr(Schema.String)
})
export type TrainGroup = typeof TrainGroup.Type

export const Loss = Schema.Literals(["cispo", "ppo", "gspo", "grpo", "dr_grpo", "dapo"])
export type Loss = typeof Loss.Type

const nonNegative = Schema.Finite.check(Schema.isGreaterThanOrEqualTo(0))
const positive = Schema.Finite.check(Schema.isGreaterThan(0))

/** Options of one update; every field may be left out. Defaults and their sources: docs/training.md. */
export const TrainConfig = Schema.Struct({
  loss: Schema.optionalKey(Loss),
  learningRate: Schema.optionalKey(nonNegative),
  weightDecay: Schema.optionalKey(nonNegative),
  beta1: Schema.optionalKey(nonNegative),
  beta2: Schema.optionalKey(nonNegative),
  gradClip: Schema.optionalKey(positive),
  ratioCap: Schema.optionalKey(positive),
  clipLow: Schema.optionalKey(positive),
  clipHigh: Schema.optionalKey(positive),
  stdScaling: Schema.optionalKey(Schema.Literals(["group", "batch", "none"])),
  entropyBonus: Schema.optionalKey(nonNegative),
  denominator: Schema.optionalKey(Schema.Literals(["trained", "batch"])),
  maxTokensPerMicroBatch: Schema.optionalKey(Schema.Int.check(Schema.isGreaterThanOrEqualTo(16))),
  deterministic: Schema.optionalKey(Schema.Boolean)
})
export type TrainConfig = typeof TrainConfig.Type

export const TrainRequest = Schema.Struct({
  key: Schema.String,
  expectedStep: Schema.Natural,
  groups: Schema.Array(TrainGroup),
  config: TrainConfig
})
export type TrainRequest = typeof TrainRequest.Type

export const TrainAccepted = Schema.Struct({ job: Schema.String })

export const TrainResult = Schema.Struct({
  step: Schema.Natural,
  trained: Schema.Boolean,
  repeated: Schema.Boolean,
  policy: Schema.String,
  metrics: Schema.Record(Schema.String, Schema.Finite),
  nonFinite: Schema.Array(Schema.String),
  reasons: Schema.Record(Schema.String, Schema.Natural)
})
export type TrainResult = typeof TrainResult.Type

export const JobEvent = Schema.Struct({
  sequence: Schema.Natural,
  type: Schema.Literals(["progress", "completed", "failed"]),
  done: Schema.optionalKey(Schema.NullOr(Schema.Natural)),
  total: Schema.optionalKey(Schema.NullOr(Schema.Natural)),
  phase: Schema.optionalKey(Schema.NullOr(Schema.String)),
  result: Schema.optionalKey(Schema.NullOr(TrainResult)),
  error: Schema.optionalKey(Schema.NullOr(ErrorDetail))
})
export type JobEvent = typeof JobEvent.Type
