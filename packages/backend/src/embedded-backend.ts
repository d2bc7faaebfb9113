/**
 * The embedded backend: the Python gateway as a child of this process, on a free port of the loopback interface.
 */
import { randomBytes, randomUUID } from "node:crypto"
import { join } from "node:path"
import { Backend, BackendError, BackendProvider, connect, Protocol } from "@ludus/core"
import { type Duration, Effect, Layer, Schema } from "effect"
import { childEnvironment } from "./child-environment.ts"
import { startGroup } from "./child-group.ts"
import { firstLine } from "./first-line.ts"
import { type LogFile, openLog } from "./log-file.ts"
import { type PythonEnvironment, pythonEnvironment, type PythonEnvironmentOptions } from "./python-environment.ts"
import type { PythonEnvironmentError } from "./python-environment-error.ts"

export interface EmbeddedOptions extends PythonEnvironmentOptions {
  /** Folder of models and checkpoints, and of `backend.log`; made if missing. */
  readonly stateRoot: string
  /** Threads of the numeric library. Default: the backend's own choice. */
  readonly threads?: number
  /** How long to wait for the gateway to listen. Default 2 minutes. */
  readonly startTimeout?: Duration.Input
  /** An interpreter that already has everything the backend imports. Default: found or made by {@link pythonEnvironment}. */
  readonly environment?: PythonEnvironment
}

/**
 * Starts the backend and connects to it; the child and its engine are gone when the scope has closed, within about
 * 2 seconds. Fails with the codes `start_failed` (with the last lines of its log) and `start_timeout`, and with those of
 * `connect`.
 */
export const openEmbedded = Effect.fn("Backend.openEmbedded")(function* (options: EmbeddedOptions) {
  const environment = options.environment ?? (yield* pythonEnvironment(options))
  const log = yield* openLog(join(options.stateRoot, "backend.log")).pipe(
    Effect.mapError((error) => startFailed(`its log cannot be written: ${error.message}`))
  )
  const token = randomBytes(32).toString("base64url")
  const instance = randomUUID()
  const child = yield* startGroup({
    file: environment.python,
    args: ["-m", "ludus_backend", ...serveArguments(options, instance)],
    env: variables(options, environment, token),
    stdout: "pipe",
    stderr: log.descriptor
  }).pipe(Effect.mapError((error) => startFailed(error.message)))
  const ended = Effect.flatMap(child.ended, ({ code, signal }) =>
    Effect.fail(startFailed(`it ended with ${signal ?? `exit code ${code}`}.\n${log.tail()}`))
  )
  const port = yield* listening(firstLine(child, ended), log, options.startTimeout ?? "2 minutes")
  const backend = yield* connect({ url: `http://127.0.0.1:${port}`, token, instance }).pipe(
    Effect.mapError((error) => withLog(error, log)),
    Effect.raceFirst(ended)
  )
  child.unref()
  return backend
})

/** One embedded backend for everything that the layer is provided to. */
export const layerEmbedded = (options: EmbeddedOptions): Layer.Layer<Backend, BackendError | PythonEnvironmentError> =>
  Layer.effect(Backend, openEmbedded(options))

/** An embedded backend for each run, with its state in the run's folder. */
export const providerEmbedded = (options: Omit<EmbeddedOptions, "stateRoot"> = {}): Layer.Layer<BackendProvider> =>
  Layer.succeed(BackendProvider, {
    open: ({ stateRoot }) =>
      Effect.catchTag(openEmbedded({ ...options, stateRoot }), "PythonEnvironmentError", ({ message, advice }) =>
        Effect.fail(new BackendError({ code: "python_environment", message, advice }))
      )
  })

const serveArguments = (options: EmbeddedOptions, instance: string): ReadonlyArray<string> => [
  "serve",
  "--host=127.0.0.1",
  "--port=0",
  `--state=${options.stateRoot}`,
  `--instance=${instance}`,
  "--token-env=LUDUS_TOKEN",
  "--parent-stdin",
  ...(options.threads === undefined ? [] : [`--threads=${options.threads}`])
]

/** `PYTHONSAFEPATH`: a folder named like a module in the user's working directory must not be imported in its place. */
const variables = (
  options: EmbeddedOptions,
  environment: PythonEnvironment,
  token: string
): Record<string, string> => ({
  ...childEnvironment(options.variables ?? process.env),
  ...(environment.source === undefined ? {} : { PYTHONPATH: environment.source }),
  PYTHONSAFEPATH: "1",
  PYTHONUNBUFFERED: "1",
  PYTHONUTF8: "1",
  LUDUS_TOKEN: token
})

/** What it prints: where it listens, or why it cannot. */
const Ready = Schema.fromJsonString(Schema.Union([Schema.Struct({ port: Schema.Int }), Protocol.ErrorBody]))

/** The port of the first line, at most until the deadline. */
const listening = (line: Effect.Effect<string, BackendError>, log: LogFile, timeout: Duration.Input) =>
  Effect.gen(function* () {
    const text = yield* line
    const said = yield* Effect.mapError(Schema.decodeEffect(Ready)(text), () =>
      startFailed(`it printed ${JSON.stringify(text)} instead of its port.`)
    )
    if ("port" in said) return said.port
    const { code, message, advice } = said.error
    return yield* new BackendError({
      code: code ?? "start_failed",
      message,
      advice: advice ?? `All of it: ${log.path}`
    })
  }).pipe(
    Effect.timeoutOrElse({
      duration: timeout,
      orElse: () =>
        Effect.fail(
          new BackendError({
            code: "start_timeout",
            message: `The backend did not listen in time. Its last lines:\n${log.tail()}`,
            advice: `Read ${log.path}; on a slow disk, raise startTimeout.`
          })
        )
    })
  )

/** The reason why an engine failed stands in the log of the child, not in its answer. */
const withLog = (error: BackendError, log: LogFile): BackendError => {
  const { code, message } = error
  if (code !== "engine_failed") return error
  return new BackendError({ code, message: `${message}\n${log.tail()}`, advice: `All of it: ${log.path}` })
}

const startFailed = (why: string): BackendError =>
  new BackendError({
    code: "start_failed",
    message: `The backend did not start: ${why}`,
    advice: "Read its last lines above; `backend.log` in the state folder has all of them."
  })
