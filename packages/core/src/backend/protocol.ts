/**
 * The wire protocol, client side: one Schema per body of `backend/ludus_backend/protocol.py`, tested both ways against
 * the committed `backend/openapi.json` and the running server. Replies are decoded tolerantly (unknown fields pass),
 * requests are strict.
 */
import { Schema } from "effect"
import { AssistantMessage, SystemMessage, ToolMessage, UserMessage } from "../message.ts"

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
const count = Schema.Int.check(Schema.isGreaterThanOrEqualTo(1))

/**
 * Options of one update; every field may be left out. `loss` sets the axes that are absent, and refuses explicit ones
 * that contradict it. Defaults and their sources: docs/training.md.
 */
export const TrainConfig = Schema.Struct({
  loss: Schema.optionalKey(Loss),
  importanceLevel: Schema.optionalKey(Schema.Literals(["token", "sequence"])),
  aggregation: Schema.optionalKey(Schema.Literals(["token", "trajectory", "constant"])),
  aggregationLength: Schema.optionalKey(count),
  ratioCap: Schema.optionalKey(positive),
  clipLow: Schema.optionalKey(positive),
  clipHigh: Schema.optionalKey(positive),
  stdScaling: Schema.optionalKey(Schema.Literals(["group", "batch", "none"])),
  credit: Schema.optionalKey(Schema.Literals(["trajectory", "turn"])),
  oldLogprobs: Schema.optionalKey(Schema.Literals(["sampler", "recomputed"])),
  truncatedImportance: Schema.optionalKey(positive),
  kl: Schema.optionalKey(nonNegative),
  entropyBonus: Schema.optionalKey(nonNegative),
  denominator: Schema.optionalKey(Schema.Literals(["trained", "batch"])),
  maxStaleness: Schema.optionalKey(Schema.NullOr(Schema.Natural)),
  stepsPerCall: Schema.optionalKey(Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 64 }))),
  learningRate: Schema.optionalKey(nonNegative),
  weightDecay: Schema.optionalKey(nonNegative),
  beta1: Schema.optionalKey(nonNegative),
  beta2: Schema.optionalKey(nonNegative),
  gradClip: Schema.optionalKey(positive),
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

/** Makes a model whose step 0 has the weights of an existing step; see the Python model for the fields. */
export const ForkModel = Schema.Struct({
  name: ModelName,
  model: Schema.optionalKey(Schema.NullOr(ModelName)),
  path: Schema.optionalKey(Schema.NullOr(Schema.String)),
  step: Schema.optionalKey(Schema.NullOr(Schema.Natural)),
  optimizer: Schema.optionalKey(Schema.Boolean)
})
export type ForkModel = typeof ForkModel.Type

export const KeepBest = Schema.Struct({
  metric: Schema.String,
  mode: Schema.optionalKey(Schema.Literals(["max", "min"])),
  count: Schema.optionalKey(Schema.Natural)
})

/** Either `steps`, or what to keep. Never deleted: the newest, one in use, one of `keep`. */
export const DeleteCheckpoints = Schema.Struct({
  steps: Schema.optionalKey(Schema.NullOr(Schema.Array(Schema.Natural))),
  keepLast: Schema.optionalKey(Schema.NullOr(Schema.Natural)),
  keepBest: Schema.optionalKey(Schema.NullOr(KeepBest)),
  keep: Schema.optionalKey(Schema.Array(Schema.Natural)),
  dryRun: Schema.optionalKey(Schema.Boolean)
})
export type DeleteCheckpoints = typeof DeleteCheckpoints.Type

export const KeptCheckpoint = Schema.Struct({ step: Schema.Natural, reason: Schema.String })
export const DeletedCheckpoints = Schema.Struct({
  deleted: Schema.Array(Schema.Natural),
  kept: Schema.Array(KeptCheckpoint),
  notices: Schema.Array(Schema.String)
})
export type DeletedCheckpoints = typeof DeletedCheckpoints.Type

/** `destination`: an absolute path on the backend's machine that does not exist yet, or is an empty folder. */
export const ExportModel = Schema.Struct({
  step: Schema.optionalKey(Schema.NullOr(Schema.Natural)),
  format: Schema.optionalKey(Schema.Literals(["adapter", "merged"])),
  dtype: Schema.optionalKey(Schema.Literals(["fp32", "fp16", "bf16"])),
  destination: Schema.String
})
export type ExportModel = typeof ExportModel.Type

export const ExportedModel = Schema.Struct({
  step: Schema.Natural,
  path: Schema.String,
  files: Schema.Array(Schema.String),
  bytes: Schema.Natural,
  warnings: Schema.Array(Schema.String)
})
export type ExportedModel = typeof ExportedModel.Type

export const ToolSpec = Schema.Struct({
  type: Schema.Literal("function"),
  function: Schema.Struct({
    name: Schema.String,
    description: Schema.optionalKey(Schema.String),
    parameters: Schema.optionalKey(Schema.Record(Schema.String, Schema.Unknown)),
    strict: Schema.optionalKey(Schema.Boolean)
  })
})
export type ToolSpec = typeof ToolSpec.Type

/** A message of a fine-tuning example; `weight` 0 takes a reply out of the loss. */
export const SftMessage = Schema.Union([
  SystemMessage,
  UserMessage,
  Schema.Struct({ ...AssistantMessage.fields, weight: Schema.optionalKey(Schema.Literals([0, 1])) }),
  ToolMessage
])
export type SftMessage = typeof SftMessage.Type

export const SftExample = Schema.Struct({
  messages: Schema.Array(SftMessage),
  tools: Schema.optionalKey(Schema.Array(ToolSpec))
})
export type SftExample = typeof SftExample.Type

/** Options of a supervised fine-tuning; every field may be left out. Defaults: docs/checkpoints.md. */
export const SftConfig = Schema.Struct({
  epochs: Schema.optionalKey(Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 1000 }))),
  tokensPerStep: Schema.optionalKey(Schema.Int.check(Schema.isGreaterThanOrEqualTo(1))),
  shuffle: Schema.optionalKey(Schema.Boolean),
  seed: Schema.optionalKey(Schema.Int),
  train: Schema.optionalKey(Schema.Literals(["all", "last"])),
  tooLong: Schema.optionalKey(Schema.Literals(["refuse", "skip"])),
  learningRate: Schema.optionalKey(nonNegative),
  schedule: Schema.optionalKey(Schema.Literals(["constant", "linear", "cosine"])),
  warmupRatio: Schema.optionalKey(nonNegative.check(Schema.isLessThan(1))),
  weightDecay: Schema.optionalKey(nonNegative),
  beta1: Schema.optionalKey(nonNegative),
  beta2: Schema.optionalKey(nonNegative),
  gradClip: Schema.optionalKey(positive),
  maxTokensPerMicroBatch: Schema.optionalKey(Schema.Int.check(Schema.isGreaterThanOrEqualTo(16)))
})
export type SftConfig = typeof SftConfig.Type

export const SftRequest = Schema.Struct({
  key: Schema.String,
  expectedStep: Schema.Natural,
  examples: Schema.Array(SftExample),
  config: SftConfig
})
export type SftRequest = typeof SftRequest.Type
