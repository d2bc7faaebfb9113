/**
 * The backend over HTTP: whoever started it, this is how the client speaks to it.
 */
import { type Duration, Effect, Layer, Schema } from "effect"
import { defaultRetry, type RetryPolicy } from "../http/retry.ts"
import { Backend, BackendError, type BackendService } from "./backend.ts"
import { backendPolicy } from "./backend-policy.ts"
import { checkTrainRequest } from "./check-train-request.ts"
import { greet } from "./greet.ts"
import { runJob } from "./job-stream.ts"
import { call, type Deadlines, defaultDeadlines, type Link, linkRequest } from "./link.ts"
import { Checkpoints, ModelInfo, ModelName, RegisterModel } from "./protocol.ts"

export interface ConnectOptions {
  /** `http://127.0.0.1:43117`, or what a proxy in front of it is called. */
  readonly url: string
  readonly token: string
  /** The nonce that the server was started with: another server on the same port is refused. */
  readonly instance?: string
  /** How long a backend may say that it is starting. Default 2 minutes. */
  readonly startTimeout?: Duration.Input
  readonly deadlines?: Partial<Deadlines>
  readonly retry?: Partial<RetryPolicy>
}

/**
 * Connects to a running backend. Fails with the codes `unreachable`, `foreign_server` (not a Ludus backend, or not the
 * one that was started), `incompatible` (another protocol version), `unauthorized`, `engine_failed` and `timeout`.
 */
export const connect = Effect.fn("Backend.connect")(function* (
  options: ConnectOptions
): Effect.fn.Return<BackendService, BackendError> {
  const link: Link = {
    url: yield* baseUrl(options.url),
    token: options.token,
    retry: { ...defaultRetry, ...options.retry },
    deadlines: { ...defaultDeadlines, ...options.deadlines }
  }
  const capabilities = yield* greet(link, {
    instance: options.instance,
    startTimeout: options.startTimeout ?? "2 minutes"
  })
  const contextLengths = new Map<string, number>()
  return {
    url: link.url,
    token: link.token,
    capabilities,
    register: Effect.fn("Backend.register")(function* (model) {
      const body = yield* Schema.encodeEffect(RegisterModel)(model).pipe(
        Effect.mapError((error) => invalid("model", error.message))
      )
      const info = yield* call(
        link,
        linkRequest(link, "POST", "/v1/ludus/models", body),
        ModelInfo,
        link.deadlines.register
      )
      contextLengths.set(info.name, info.contextLength)
      return info
    }),
    checkpoints: Effect.fn("Backend.checkpoints")(function* (name) {
      yield* checkName(name)
      const found = yield* call(link, linkRequest(link, "GET", `/v1/ludus/models/${name}/checkpoints`), Checkpoints)
      return found.checkpoints
    }),
    train: Effect.fn("Backend.train")(function* (name, request, onEvent) {
      yield* checkName(name)
      const body = yield* checkTrainRequest(request, capabilities)
      return yield* runJob(link, name, body, onEvent ?? (() => Effect.void))
    }),
    policy: (model) => backendPolicy(link, model, contextLengths.get(model.split("@")[0] ?? model))
  }
})

/** {@link connect} as a layer. */
export const layerHttp = (options: ConnectOptions): Layer.Layer<Backend, BackendError> =>
  Layer.effect(Backend, connect(options))

const baseUrl = (url: string): Effect.Effect<string, BackendError> => {
  const parsed = URL.parse(url)
  return parsed !== null && /^https?:$/u.test(parsed.protocol)
    ? Effect.succeed(url.replace(/\/+$/u, ""))
    : Effect.fail(invalid("url", `"${url}" is not an http address`))
}

const isModelName: (name: string) => boolean = Schema.is(ModelName)

const checkName = (name: string): Effect.Effect<void, BackendError> =>
  isModelName(name) ? Effect.void : Effect.fail(invalid("name", `"${name}" cannot name a model`))

const invalid = (field: string, message: string): BackendError =>
  new BackendError({ code: "invalid_request", message, field, advice: `Correct ${field}. Nothing was sent.` })
