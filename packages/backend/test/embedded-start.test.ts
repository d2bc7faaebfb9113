/**
 * Starting an embedded backend: what it is given, whom it is confused with (nobody), and how a failed start is reported.
 */
import { createServer } from "node:http"
import { basename } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { Backend } from "@ludus/core"
import { Effect } from "effect"
import { layerEmbedded } from "../src/index.ts"
import { fakeEnvironment, running, started, stateFolder } from "./fixtures/fake.ts"

/** Starts the stand-in in the given mode and gives its error, or the URL that it runs at. */
const attempt = Effect.fnUntraced(function* (stateRoot: string, variables: Record<string, string>) {
  const layer = layerEmbedded({
    stateRoot,
    environment: fakeEnvironment,
    threads: 1,
    startTimeout: variables["LUDUS_FAKE"] === "silent" ? "8 seconds" : "1 minute",
    variables: { ...process.env, ...variables }
  })
  return yield* Effect.result(
    Effect.provide(
      Effect.map(Backend, ({ url, token }) => ({ url, token })),
      layer
    )
  )
})

/** Somebody else's healthy server, which says that it has another model. */
const occupant = Effect.acquireRelease(
  Effect.callback<{ readonly port: number; readonly close: () => void; readonly requests: Array<string> }>((resume) => {
    const requests: Array<string> = []
    const body = JSON.stringify({ status: "ok", protocol: 1, version: "0.1.0", instance: "other", engine: "embedded" })
    const server = createServer((request, response) => {
      requests.push(request.url ?? "")
      response.setHeader("content-type", "application/json").end(body)
    })
    server.listen(0, "127.0.0.1", () => {
      const address = server.address()
      if (address === null || typeof address === "string") return
      resume(Effect.succeed({ port: address.port, requests, close: () => server.close() }))
    })
  }),
  ({ close }) => Effect.sync(close)
)

describe.concurrent("an embedded backend", { timeout: 120_000 }, () => {
  it.live("gets a port from the system, a secret by its environment only, and none of the owner's keys", () =>
    Effect.gen(function* () {
      const state = yield* stateFolder
      const keys = { OPENAI_API_KEY: "sk-1", AWS_SECRET_ACCESS_KEY: "s", PIP_INDEX_URL: "https://user:password@index" }
      const result = yield* attempt(state, { ...keys, HF_HOME: "/models", LUDUS_TOKEN: "of the parent" })
      const { variables, arguments: args, port } = yield* started(state)
      assert.deepStrictEqual(result._tag, "Success")
      assert.deepStrictEqual(result._tag === "Success" && result.success.url, `http://127.0.0.1:${port}`)
      for (const name of Object.keys(keys)) assert.notProperty(variables, name)
      assert.strictEqual(variables["HF_HOME"], "/models")
      assert.match(variables["LUDUS_TOKEN"] ?? "", /^[\w-]{43}$/)
      assert.notInclude(args.join(" "), variables["LUDUS_TOKEN"] ?? "")
      assert.include(args, "--threads=1")
    })
  )

  it.live("PROC-01: is never mistaken for another server on the port", () =>
    Effect.gen(function* () {
      const state = yield* stateFolder
      const other = yield* occupant
      const result = yield* attempt(state, { LUDUS_FAKE: "stranger", LUDUS_FAKE_PORT: String(other.port) })
      assert.strictEqual(
        result._tag === "Failure" && result.failure._tag === "BackendError" && result.failure.code,
        "foreign_server"
      )
      assert.deepStrictEqual([...new Set(other.requests)], ["/health"])
      assert.isEmpty(running((yield* started(state)).pids))
    })
  )

  it.live("PROC-04: that dies at once fails with the last lines of its log", () =>
    Effect.gen(function* () {
      const state = yield* stateFolder
      const result = yield* attempt(state, { LUDUS_FAKE: "crashes" })
      if (result._tag !== "Failure" || result.failure._tag !== "BackendError") return assert.fail("it started")
      assert.strictEqual(result.failure.code, "start_failed")
      assert.include(result.failure.message, "exit code 1")
      assert.include(result.failure.message, "CUDA out of memory")
    })
  )

  it.live("that never listens fails at the deadline and is gone", () =>
    Effect.gen(function* () {
      const state = yield* stateFolder
      const result = yield* attempt(state, { LUDUS_FAKE: "silent" })
      assert.strictEqual(
        result._tag === "Failure" && result.failure._tag === "BackendError" && result.failure.code,
        "start_timeout"
      )
      assert.isEmpty(running((yield* started(state)).pids))
    })
  )

  it.live("that prints something else than its port fails and is gone", () =>
    Effect.gen(function* () {
      const state = yield* stateFolder
      const result = yield* attempt(state, { LUDUS_FAKE: "babbles" })
      if (result._tag !== "Failure" || result.failure._tag !== "BackendError") return assert.fail("it started")
      assert.strictEqual(result.failure.code, "start_failed")
      assert.include(result.failure.message, '"Welcome!"')
      assert.isEmpty(running((yield* started(state)).pids))
    })
  )

  it.live("that says why it cannot start fails with that", () =>
    Effect.gen(function* () {
      const state = yield* stateFolder
      const result = yield* attempt(state, { LUDUS_FAKE: "refuses" })
      if (result._tag !== "Failure" || result.failure._tag !== "BackendError") return assert.fail("it started")
      const { code, message, advice } = result.failure
      assert.deepStrictEqual({ code, message, advice }, { code: "no_disk", message: "no room", advice: "make some" })
    })
  )

  it.live("whose engine fails is reported with the last lines of its log", () =>
    Effect.gen(function* () {
      const state = yield* stateFolder
      const result = yield* attempt(state, { LUDUS_FAKE: "fails" })
      if (result._tag !== "Failure" || result.failure._tag !== "BackendError") return assert.fail("it started")
      assert.strictEqual(result.failure.code, "engine_failed")
      assert.include(result.failure.message, "ImportError: of the engine")
    })
  )

  it.live("whose interpreter is missing fails with its name", () =>
    Effect.gen(function* () {
      const stateRoot = yield* stateFolder
      const python = `/nowhere/${basename(stateRoot)}`
      const result = yield* Effect.result(
        Effect.provide(Backend, layerEmbedded({ stateRoot, environment: { python } }))
      )
      if (result._tag !== "Failure" || result.failure._tag !== "BackendError") return assert.fail("it started")
      assert.strictEqual(result.failure.code, "start_failed")
      assert.include(result.failure.message, python)
    })
  )
})
