/**
 * The lower level: a model that is trained by a loop of your own. The shape is ART's (OpenPipe), with our types.
 *
 * ```ts
 * const model = yield* TrainableModel.make({ name: "my-model" }).register
 * const groups = yield* gatherGroups(scenarios, 8, (scenario) => Effect.gen(function* () {
 *   const episode = yield* model.openaiForEpisode()
 *   ... episode.openai.chat.completions.create(...) ...
 *   return { exchanges: episode.exchanges(), reward }
 * }))
 * yield* model.train(groups, { learningRate: 1e-5 })
 * ```
 */
import { createHash } from "node:crypto"
import { Effect, Ref, Schema, type Scope } from "effect"
import OpenAI from "openai"
import { Backend, BackendError, type BackendService } from "./backend/backend.ts"
import { openEpisode } from "./backend/episode.ts"
import { defaultDeadlines } from "./backend/link.ts"
import {
  BaseModelSpec,
  DeleteCheckpoints,
  type DeletedCheckpoints,
  type ExportedModel,
  ExportModel,
  ForkModel,
  LoraSpec,
  type ModelInfo,
  ModelName,
  SftConfig,
  type SftExample,
  type TrainConfig,
  type TrainResult
} from "./backend/protocol.ts"
import { badOption } from "./check-options.ts"
import type { Exchange } from "./exchange.ts"
import { type Group, toScoredGroup } from "./group.ts"
import { defaultRetry } from "./http/retry.ts"
import { pooledFetch } from "./http/send.ts"
import type { LostExchange } from "./lost-exchange.ts"
import type { Policy } from "./policy.ts"
import * as Progress from "./progress.ts"
import { makeRecorder } from "./recorder.ts"
import { type InvalidTrainRequest, toTrainRequest, withLeftOut } from "./train-request.ts"

export interface TrainableModelOptions {
  /** Letters, digits, `.`, `_` and `-`; a model of this name that the backend has goes on from its newest step. */
  readonly name: string
  /** Which weights to start from. Default: the bundled small model. */
  readonly base?: BaseModelSpec
  /** Default: rank 8, alpha 16, all linear layers. */
  readonly lora?: LoraSpec
  /** Of the fresh adapter. Default 0. */
  readonly seed?: number
}

/** A description; nothing happens before it is registered. */
export interface TrainableModel {
  readonly name: string
  /** Makes `name@0` on the backend, or finds the model again. */
  readonly register: Effect.Effect<RegisteredModel, BackendError, Backend>
}

/** An OpenAI client whose calls belong to one episode and are recorded. */
export interface EpisodeClient {
  readonly id: string
  readonly openai: OpenAI
  /** What was sampled so far, with exact ids. Throws while a streamed reply is still coming, or where one was lost. */
  readonly exchanges: () => ReadonlyArray<Exchange>
  /** The same, as soon as every streamed reply has come whole: also those whose reader left early. */
  readonly finished: Effect.Effect<ReadonlyArray<Exchange>, LostExchange>
}

export interface RegisteredModel {
  readonly name: string
  readonly info: ModelInfo
  /** Newest step, as far as this client has trained. */
  readonly step: Effect.Effect<number>
  /** What to send as `model`: the name (its newest step, leased by each episode), or the name at a step. */
  readonly inferenceName: (step?: number) => string
  readonly policy: (step?: number) => Policy
  /** The official client, ready to use. Its calls belong to no episode: they cannot be trained. */
  readonly openai: () => OpenAI
  /** The official client within one episode; closing the scope ends the episode. `train` false records without training. */
  readonly openaiForEpisode: (options?: {
    readonly train?: boolean
  }) => Effect.Effect<EpisodeClient, BackendError, Scope.Scope>
  /** One update from scored groups. Repeating it with the same groups at the same step trains once. */
  readonly train: (
    groups: ReadonlyArray<Group>,
    config?: TrainConfig
  ) => Effect.Effect<TrainResult, BackendError | InvalidTrainRequest>
  /**
   * Supervised fine-tuning, from `readChatFile` or of your own: one step an update. `train` goes on from its last step.
   * A repeat with the same examples goes on where it was cut; in another process, `from` says the step it began at.
   */
  readonly sft: (
    examples: ReadonlyArray<SftExample>,
    config?: SftConfig,
    options?: { readonly from?: number }
  ) => Effect.Effect<TrainResult, BackendError>
  /** Deletes checkpoints, never the newest or one in use. */
  readonly deleteCheckpoints: (which: DeleteCheckpoints) => Effect.Effect<DeletedCheckpoints, BackendError>
  /** Writes a step to a folder on the backend's machine: the adapter, or a plain transformers model. */
  readonly exportTo: (
    destination: string,
    options?: Omit<ExportModel, "destination">
  ) => Effect.Effect<ExportedModel, BackendError>
}

const Options = Schema.Struct({
  name: ModelName,
  base: Schema.optional(BaseModelSpec),
  lora: Schema.optional(LoraSpec),
  seed: Schema.optional(Schema.Int)
})

const ExportOptions = Schema.Struct({
  step: ExportModel.fields.step,
  format: ExportModel.fields.format,
  dtype: ExportModel.fields.dtype
})

const SftFrom = Schema.Struct({ from: Schema.optional(Schema.Natural) })

/** Describes a model to train. */
export const make = (options: TrainableModelOptions): TrainableModel => ({
  name: options.name,
  register: Effect.gen(function* () {
    const backend = yield* Backend
    yield* known(Options, options)
    const info = yield* backend.register({
      name: options.name,
      base: options.base ?? { source: "bundled" },
      lora: options.lora ?? { rank: 8, alpha: 16 },
      seed: options.seed ?? 0
    })
    return registered(backend, info, yield* Ref.make(info.step))
  }).pipe(Effect.withSpan("TrainableModel.register"))
})

/** A new model whose step 0 has the weights of a step of another one; see docs/checkpoints.md. */
export const fork = Effect.fn("TrainableModel.fork")(function* (
  options: ForkModel
): Effect.fn.Return<RegisteredModel, BackendError, Backend> {
  const backend = yield* Backend
  yield* known(ForkModel, options)
  const info = yield* backend.fork(options)
  return registered(backend, info, yield* Ref.make(info.step))
})

const registered = (backend: BackendService, info: ModelInfo, step: Ref.Ref<number>): RegisteredModel => {
  const { name } = info
  const inferenceName = (at?: number) => (at === undefined ? name : `${name}@${at}`)
  return {
    name,
    info,
    step: Ref.get(step),
    inferenceName,
    policy: (at) => backend.policy(inferenceName(at)),
    openai: () => client(backend.url, backend.token, pooledFetch, 2),
    openaiForEpisode: Effect.fn("TrainableModel.openaiForEpisode")(function* (options) {
      const link = { url: backend.url, token: backend.token, retry: defaultRetry, deadlines: defaultDeadlines }
      const episode = yield* openEpisode(link, name)
      const recorder = makeRecorder({ request: episode.id, train: options?.train ?? true })
      yield* Effect.addFinalizer(() => recorder.close)
      return {
        id: episode.id,
        openai: client(backend.url, episode.key, recorder.fetch, 0),
        exchanges: recorder.exchanges,
        finished: recorder.finished
      }
    }),
    train: Effect.fn("TrainableModel.train")(function* (groups, config = {}) {
      const expectedStep = yield* Ref.get(step)
      const scored = groups.map((group) => toScoredGroup(group))
      const key = requestKey(name, expectedStep, [scored, config])
      const { leftOut, notices, request } = yield* Effect.fromResult(
        toTrainRequest(scored, { key, expectedStep, config })
      )
      for (const { level, message } of notices) yield* Progress.notice(level, message)
      const result = withLeftOut(yield* backend.train(name, request), leftOut)
      yield* Ref.set(step, result.step)
      return result
    }),
    sft: Effect.fn("TrainableModel.sft")(function* (examples, config = {}, options = {}) {
      yield* known(SftConfig, config)
      yield* known(SftFrom, options)
      const expectedStep = options.from ?? (yield* Ref.get(step))
      const key = requestKey(name, expectedStep, [examples, config])
      const result = yield* backend.sft(name, { key, expectedStep, examples, config })
      yield* Ref.set(step, result.step)
      return result
    }),
    deleteCheckpoints: (which) =>
      Effect.andThen(known(DeleteCheckpoints, which), backend.deleteCheckpoints(name, which)),
    exportTo: (destination, options = {}) =>
      Effect.andThen(known(ExportOptions, options), backend.exportModel(name, { ...options, destination }))
  }
}

/** Refuses an option that is unknown or wrong, before anything is sent. */
const known = (...given: Parameters<typeof badOption>): Effect.Effect<void, BackendError> => {
  const bad = badOption(...given)
  return bad === undefined
    ? Effect.void
    : Effect.fail(
        new BackendError({
          code: "invalid_request",
          message: `${bad.field} is ${bad.value}; expected ${bad.expected}.`,
          ...bad,
          advice: `Correct ${bad.field}. Nothing was sent.`
        })
      )
}

/** The same content at the same step is the same request, which trains once. */
const requestKey = (name: string, step: number, content: unknown): string => {
  const hash = createHash("sha256").update(JSON.stringify(content)).digest("hex").slice(0, 16)
  return `${name}:${step}:${hash}`
}

/** Nothing but the given key goes out: the client's own environment variables are for another server. */
const client = (url: string, apiKey: string, fetch: typeof globalThis.fetch, maxRetries: number): OpenAI =>
  new OpenAI({
    baseURL: `${url}/v1`,
    apiKey,
    adminAPIKey: null,
    organization: null,
    project: null,
    webhookSecret: null,
    fetch,
    maxRetries
  })
