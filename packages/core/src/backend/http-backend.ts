/**
 * The backend over HTTP: whoever started it, this is how the client speaks to it.
 */
import { type Duration, Effect, Layer, Schema, SchemaIssue } from "effect"
import { defaultRetry, type RetryPolicy } from "../http/retry.ts"
import { Backend, BackendError, type BackendService } from "./backend.ts"
import { backendPolicy } from "./backend-policy.ts"
import { checkTrainRequest } from "./check-train-request.ts"
import { greet } from "./greet.ts"
import { runJob } from "./job-stream.ts"
import { call, type Deadlines, defaultDeadlines, type Link, linkRequest } from "./link.ts"
import {
  Checkpoints,
  DeleteCheckpoints,
  DeletedCheckpoints,
  ExportedModel,
  ExportModel,
  ForkModel,
  ModelInfo,
  ModelName,
  RegisterModel,
  SftRequest
} from "./protocol.ts"

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
      const body = yield* encoded(RegisterModel, model)
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
      return yield* runJob(link, name, "train", body, onEvent ?? (() => Effect.void))
    }),
    sft: Effect.fn("Backend.sft")(function* (name, request, onEvent) {
      yield* checkName(name)
      const body = yield* encoded(SftRequest, request)
      return yield* runJob(link, name, "sft", body, onEvent ?? (() => Effect.void))
    }),
    fork: Effect.fn("Backend.fork")(function* (fork) {
      const body = yield* encoded(ForkModel, fork)
      const request = linkRequest(link, "POST", "/v1/ludus/forks", body)
      const info = yield* call(link, request, ModelInfo, link.deadlines.register)
      contextLengths.set(info.name, info.contextLength)
      return info
    }),
    deleteCheckpoints: Effect.fn("Backend.deleteCheckpoints")(function* (name, which) {
      yield* checkName(name)
      const body = yield* encoded(DeleteCheckpoints, which)
      return yield* call(
        link,
        linkRequest(link, "POST", `/v1/ludus/models/${name}/checkpoints/delete`, body),
        DeletedCheckpoints
      )
    }),
    exportModel: Effect.fn("Backend.exportModel")(function* (name, what) {
      yield* checkName(name)
      const body = yield* encoded(ExportModel, what)
      const request = linkRequest(link, "POST", `/v1/ludus/models/${name}/export`, body)
      return yield* call(link, request, ExportedModel, link.deadlines.register)
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

/** A request's body, or why it cannot be sent, with the field's path. */
const encoded = <S extends Schema.ConstraintEncoder<unknown>>(
  schema: S,
  request: S["Type"]
): Effect.Effect<S["Encoded"], BackendError> =>
  Schema.encodeEffect(schema)(request).pipe(
    Effect.mapError((error) => {
      const first = issues(error.issue).issues[0]
      const path = (first?.path ?? []).map((part) => String(typeof part === "object" ? part.key : part))
      return invalid(path.join("."), first?.message ?? error.message)
    })
  )

const issues = SchemaIssue.makeFormatterStandardSchemaV1()

const isModelName: (name: string) => boolean = Schema.is(ModelName)

const checkName = (name: string): Effect.Effect<void, BackendError> =>
  isModelName(name) ? Effect.void : Effect.fail(invalid("name", `"${name}" cannot name a model`))

const invalid = (field: string, message: string): BackendError =>
  new BackendError({ code: "invalid_request", message, field, advice: `Correct ${field}. Nothing was sent.` })
