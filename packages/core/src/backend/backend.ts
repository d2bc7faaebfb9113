/**
 * The backend as the training loop sees it: a place that holds models, samples from them and trains them.
 *
 * `http-backend.ts` is the one implementation, over the protocol of `protocol.ts`; who starts the server is the concern
 * of `@ludus/backend` (an embedded child) or of the user (a URL).
 */
import { Context, type Effect, Schema } from "effect"
import type { Policy } from "../policy.ts"
import type {
  Capabilities,
  Checkpoint,
  DeleteCheckpoints,
  DeletedCheckpoints,
  ExportedModel,
  ExportModel,
  ForkModel,
  JobEvent,
  ModelInfo,
  RegisterModel,
  SftRequest,
  TrainRequest,
  TrainResult
} from "./protocol.ts"

/** A backend refused or failed. `code` is the protocol's error code, or `unreachable`, `foreign_server`, `incompatible`. */
export class BackendError extends Schema.TaggedError<BackendError>()("BackendError", {
  code: Schema.String,
  message: Schema.String,
  field: Schema.optionalKey(Schema.String),
  value: Schema.optionalKey(Schema.String),
  expected: Schema.optionalKey(Schema.String),
  advice: Schema.optionalKey(Schema.String),
  status: Schema.optionalKey(Schema.Int)
}) {}

export interface BackendService {
  /** Where it listens, without a trailing slash: `http://127.0.0.1:43117`. */
  readonly url: string
  /** Bearer token of this backend. */
  readonly token: string
  readonly capabilities: Capabilities
  /** Makes `name@0`, or finds the model again with its steps. Idempotent. */
  readonly register: (model: RegisterModel) => Effect.Effect<ModelInfo, BackendError>
  readonly checkpoints: (name: string) => Effect.Effect<ReadonlyArray<Checkpoint>, BackendError>
  /** Makes a model from a step of another one, of this backend or of another embedded run. Safe to repeat. */
  readonly fork: (fork: ForkModel) => Effect.Effect<ModelInfo, BackendError>
  /** Deletes checkpoints: those named, or all that the retention does not keep. Never the newest or one in use. */
  readonly deleteCheckpoints: (
    name: string,
    which: DeleteCheckpoints
  ) => Effect.Effect<DeletedCheckpoints, BackendError>
  /** Writes a step to a folder on the backend's machine, for use without Ludus. */
  readonly exportModel: (name: string, what: ExportModel) => Effect.Effect<ExportedModel, BackendError>
  /** Supervised fine-tuning, one step an update; a repeat with the same key goes on after the steps it had made. */
  readonly sft: (
    name: string,
    request: SftRequest,
    onEvent?: (event: JobEvent) => Effect.Effect<void>
  ) => Effect.Effect<TrainResult, BackendError>
  /** One update, compare-and-set on `expectedStep`; safe to repeat with the same key. */
  readonly train: (
    name: string,
    request: TrainRequest,
    onEvent?: (event: JobEvent) => Effect.Effect<void>
  ) => Effect.Effect<TrainResult, BackendError>
  /** The model as a policy: `name` is resolved and leased at the first call of an episode; `name@step` is fixed. */
  readonly policy: (model: string) => Policy
}

export class Backend extends Context.Service<Backend, BackendService>()("@ludus/core/Backend") {}
