/**
 * The Promise face, for people who do not use Effect: `await trainEnvironment(env)`.
 */
import { providerEmbedded, providerUrl } from "@ludus/backend"
import { Progress } from "@ludus/core"
import { type Environment, type EnvironmentReport, trainEnvironment as train, type TrainingOptions } from "@ludus/env"
import { Effect, Layer } from "effect"
import { progressView } from "./progress-view.ts"

interface Surroundings {
  /** A backend that is already running. Default: an embedded one is started and stopped. */
  readonly backend?: { readonly url: string; readonly token: string }
  /** Where progress goes. Default: the terminal (standard error); `false` for nowhere. */
  readonly progress?: ((event: Progress.Event) => void) | false
  /** Stops the training; the run can be resumed by its name. */
  readonly signal?: AbortSignal
}

/** Services that the environment asks for must be provided; one that asks for none needs no `layer`. */
export type TrainEnvironmentOptions<E> = TrainingOptions &
  Surroundings &
  ([Environment.Requirements<E>] extends [never]
    ? { readonly layer?: Layer.Layer<never> }
    : { readonly layer: Layer.Layer<Environment.Requirements<E>, unknown> })

type Arguments<E> = [Environment.Requirements<E>] extends [never]
  ? [options?: TrainEnvironmentOptions<E>]
  : [options: TrainEnvironmentOptions<E>]

/**
 * Trains the model of a run on an environment; a run that exists goes on where it stopped. Rejects with the typed errors
 * of the Effect of the same name in `@ludus/env`.
 */
export const trainEnvironment = <E extends Environment.Any>(
  environment: E,
  ...[options]: Arguments<E>
): Promise<EnvironmentReport> => {
  const { backend, layer, progress, signal, ...training } = (options ?? {}) as TrainingOptions &
    Surroundings & { readonly layer?: Layer.Layer<Environment.Requirements<E>, unknown> }
  const view = progressView()
  const sink: Progress.ProgressSink =
    progress === undefined
      ? view
      : { publish: (event) => Effect.sync(() => (progress === false ? undefined : progress(event))) }
  const provider =
    backend === undefined
      ? providerEmbedded({ onProgress: (message) => sink.publish({ _tag: "Notice", level: "info", message }) })
      : providerUrl(backend)
  const program = train(environment, training).pipe(
    Effect.provide(Layer.merge(provider, layer ?? Layer.empty)),
    Effect.provideService(Progress.Sink, sink)
  ) as Effect.Effect<EnvironmentReport, unknown>
  return Effect.runPromise(program, signal === undefined ? {} : { signal })
}
