/**
 * The lower level with Promises: start or connect to a backend, register a model, write the loop yourself.
 *
 * ```ts
 * await using backend = await startBackend()
 * const model = await backend.register({ name: "my-model" })
 * for (let iteration = 0; iteration < 20; iteration++) {
 *   const groups = await model.gather(scenarios, 8, async (scenario, { openai, inferenceName, seed }) => {
 *     const reply = await openai.chat.completions.create({ model: inferenceName, messages: scenario.messages, seed })
 *     return score(reply.choices[0].message.content)
 *   }, { iteration })
 *   await model.train(groups, { learningRate: 6e-4 })
 * }
 * ```
 */
import { layerEmbedded, layerUrl } from "@ludus/backend"
import {
  Backend,
  type GatherOptions,
  gatherGroups,
  type Group,
  type Member,
  type Played,
  type Protocol,
  type RegisteredModel,
  TrainableModel,
  type TrainableModelOptions
} from "@ludus/core"
import { Effect, type Layer, ManagedRuntime } from "effect"
import type OpenAI from "openai"

export interface StartBackendOptions {
  /** Where models and checkpoints are kept. Default `.ludus/backend`. */
  readonly stateRoot?: string
  /** Threads of the engine. Default: the backend's own choice. */
  readonly threads?: number
}

/** What a rollout is given beside its scenario. */
export interface RolloutContext extends Member {
  /** The official client, bound to this episode: its calls are recorded with exact ids. */
  readonly openai: OpenAI
  /** What to send as `model`. */
  readonly inferenceName: string
  /** Aborted when the gathering is stopped. */
  readonly signal: AbortSignal
}

export interface PromiseModel {
  readonly name: string
  readonly info: Protocol.ModelInfo
  /** Newest step, as far as this client has trained. */
  readonly step: () => Promise<number>
  readonly inferenceName: (step?: number) => string
  /** The official client for calls that are not trained. */
  readonly openai: () => OpenAI
  /** Plays every scenario `groupSize` times; the rollout gives back its reward, a number or named terms. */
  readonly gather: <S>(
    scenarios: ReadonlyArray<S>,
    groupSize: number,
    rollout: (scenario: S, context: RolloutContext) => Promise<Played["reward"]>,
    options?: GatherOptions<S>
  ) => Promise<ReadonlyArray<Group>>
  /** One update. Rejects with typed errors; a batch without signal gives `trained: false` and why. */
  readonly train: (groups: ReadonlyArray<Group>, config?: Protocol.TrainConfig) => Promise<Protocol.TrainResult>
}

export interface PromiseBackend extends AsyncDisposable {
  readonly url: string
  readonly token: string
  readonly register: (options: TrainableModelOptions) => Promise<PromiseModel>
  /** Stops an embedded backend; leaves one that was connected to alone. */
  readonly stop: () => Promise<void>
}

/** Starts the embedded backend; it ends with `stop()`, and at the latest with this process. */
export const startBackend = (options?: StartBackendOptions): Promise<PromiseBackend> =>
  open(layerEmbedded({ ...options, stateRoot: options?.stateRoot ?? ".ludus/backend" }))

/** Connects to a backend that runs elsewhere. */
export const connectBackend = (options: { readonly url: string; readonly token: string }): Promise<PromiseBackend> =>
  open(layerUrl(options))

const open = async (layer: Layer.Layer<Backend, unknown>): Promise<PromiseBackend> => {
  const runtime = ManagedRuntime.make(layer)
  const backend = await runtime.runPromise(Effect.flatMap(Backend, Effect.succeed))
  return {
    url: backend.url,
    token: backend.token,
    register: async (options) =>
      toPromiseModel(runtime, await runtime.runPromise(TrainableModel.make(options).register)),
    stop: () => runtime.dispose(),
    [Symbol.asyncDispose]: () => runtime.dispose()
  }
}

const toPromiseModel = (
  runtime: ManagedRuntime.ManagedRuntime<Backend, unknown>,
  model: RegisteredModel
): PromiseModel => ({
  name: model.name,
  info: model.info,
  step: () => runtime.runPromise(model.step),
  inferenceName: model.inferenceName,
  openai: model.openai,
  train: (groups, config) => runtime.runPromise(model.train(groups, config)),
  gather: (scenarios, groupSize, rollout, options) =>
    runtime.runPromise(
      gatherGroups(
        scenarios,
        groupSize,
        (scenario, member) =>
          Effect.gen(function* () {
            const episode = yield* model.openaiForEpisode()
            const reward = yield* Effect.tryPromise((signal) =>
              rollout(scenario, { ...member, openai: episode.openai, inferenceName: model.inferenceName(), signal })
            )
            return { exchanges: yield* episode.finished, reward }
          }),
        options
      )
    )
})
