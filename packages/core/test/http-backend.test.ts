import { type AddressInfo, createServer, type Server } from "node:net"
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import type { BackendError } from "../src/backend/backend.ts"
import { connect, type ConnectOptions } from "../src/backend/http-backend.ts"
import type { JobEvent, TrainRequest } from "../src/backend/protocol.ts"
import { capabilities, events, fakeBackend, health, trainResult } from "./fake-backend.ts"
import { fakeEndpoint, json, reset } from "./fake-endpoint.ts"

const open = (url: string, more: Partial<ConnectOptions> = {}) =>
  connect({ url, token: "t-1", retry: { baseMillis: 1, capMillis: 5 }, ...more })
const request: TrainRequest = { key: "run:0", expectedStep: 0, groups: [], config: { learningRate: 1e-4 } }
const codeOf = (effect: Effect.Effect<unknown, BackendError>) =>
  Effect.map(Effect.flip(effect), ({ code, field }) => [code, field])

describe("connect", () => {
  it.live("gives capabilities, sends the token everywhere but to /health", () =>
    Effect.gen(function* () {
      const server = yield* fakeBackend()
      const backend = yield* open(`${server.url}/`, { instance: "nonce-1" })
      assert.deepStrictEqual(backend.capabilities, capabilities as typeof backend.capabilities)
      assert.strictEqual(backend.url, server.url)
      yield* backend.register({ name: "toy", base: { source: "random" }, lora: { rank: 8, alpha: 16 }, seed: 0 })
      assert.deepStrictEqual(
        (yield* backend.checkpoints("toy")).map(({ step }) => step),
        [0]
      )
      assert.deepStrictEqual(
        server.asked.map(({ headers, path }) => [path, headers.authorization]),
        [
          ["/health", undefined],
          ["/v1/ludus/capabilities", "Bearer t-1"],
          ["/v1/ludus/models", "Bearer t-1"],
          ["/v1/ludus/models/toy/checkpoints", "Bearer t-1"]
        ]
      )
      assert.strictEqual(backend.policy("toy@0").contextLength, 512)
    })
  )

  it.live("PROC-01: says unreachable, foreign or incompatible instead of training on another server", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(yield* codeOf(open("http://127.0.0.1:9")), ["unreachable", "url"])
      assert.deepStrictEqual(yield* codeOf(open("localhost:80")), ["invalid_request", "url"])
      const vllm = yield* fakeEndpoint((asked, response) =>
        asked.path === "/v1/models"
          ? json(response, 200, { data: [{ id: "other-model" }] })
          : response.writeHead(200).end()
      )
      assert.deepStrictEqual(yield* codeOf(open(vllm.url)), ["foreign_server", "url"])
      const website = yield* fakeEndpoint((_, response) => json(response, 404, {}))
      assert.deepStrictEqual(yield* codeOf(open(website.url)), ["foreign_server", "url"])
      const mute = yield* Effect.acquireRelease(
        Effect.callback<Server>((resume) => {
          const server = createServer((socket) => socket.once("data", () => socket.end("-ERR unknown command\r\n")))
          server.listen(0, "127.0.0.1", () => resume(Effect.succeed(server)))
        }),
        (server) => Effect.sync(() => server.close())
      )
      const port = (mute.address() as AddressInfo).port
      assert.deepStrictEqual(yield* codeOf(open(`http://127.0.0.1:${port}`)), ["foreign_server", "url"])
      const newer = yield* fakeEndpoint((_, response) =>
        json(response, 200, { protocol: 2, instance: "x", changed: true })
      )
      const incompatible = yield* Effect.flip(open(newer.url))
      assert.deepInclude(incompatible, { code: "incompatible", field: "protocol", value: "2", expected: "1" })
      const other = yield* fakeBackend()
      const foreign = yield* Effect.flip(open(other.url, { instance: "nonce-2" }))
      assert.deepInclude(foreign, { code: "foreign_server", field: "instance", value: "nonce-1", expected: "nonce-2" })
      assert.isDefined(foreign.advice)
    })
  )

  it.live("says unauthorized where the token is wrong, with the backend's own words", () =>
    Effect.gen(function* () {
      const server = yield* fakeBackend((asked, response) => {
        if (asked.path === "/health") return false
        json(response, 401, {
          error: { message: "wrong token", code: "unauthorized", field: "authorization", advice: "look" }
        })
        return true
      })
      const error = yield* Effect.flip(open(server.url))
      assert.deepInclude(error, {
        code: "unauthorized",
        message: "wrong token",
        field: "authorization",
        advice: "look",
        status: 401
      })
    })
  )

  it.live("waits while the backend starts; a failed engine is an error", () =>
    Effect.gen(function* () {
      const server = yield* fakeBackend((asked, response) => {
        if (asked.path !== "/health" || server.asked.length > 1) return false
        json(response, 200, { ...health, status: "starting" })
        return true
      })
      yield* open(server.url)
      const failed = yield* fakeBackend((_, response) => {
        json(response, 200, { ...health, status: "failed", detail: "no memory" })
        return true
      })
      const error = yield* Effect.flip(open(failed.url))
      assert.strictEqual(error.code, "engine_failed")
      assert.include(error.message, "no memory")
    })
  )
})

describe("train", () => {
  it.live("follows the job's events to its result", () =>
    Effect.gen(function* () {
      const server = yield* fakeBackend((asked, response) => {
        if (!asked.path.includes("/jobs/")) return false
        const progress = { sequence: 1, type: "progress", done: 1, total: 2, phase: "update" }
        events(response, [
          progress,
          { ...progress, sequence: 2, done: 2 },
          { sequence: 3, type: "completed", result: trainResult }
        ])
        return true
      })
      const backend = yield* open(server.url)
      const seen: Array<JobEvent> = []
      const result = yield* backend.train("toy", request, (event) => Effect.sync(() => seen.push(event)))
      assert.deepStrictEqual(result, trainResult)
      assert.deepStrictEqual(
        seen.map(({ done, sequence }) => [sequence, done]),
        [
          [1, 1],
          [2, 2],
          [3, undefined]
        ]
      )
      const posted = server.asked.find(({ path }) => path.endsWith("/train"))
      assert.deepStrictEqual(JSON.parse(posted?.body ?? ""), request)
    })
  )

  it.live("takes a cut stream up behind the last event that was seen", () =>
    Effect.gen(function* () {
      const server = yield* fakeBackend((asked, response, raw) => {
        if (!asked.path.includes("/jobs/")) return false
        const after = Number(new URL(asked.path, server.url).searchParams.get("after"))
        const tries = server.asked.filter(({ path }) => path.includes("/jobs/")).length
        if (tries === 1) events(response, [{ sequence: 1, type: "progress" }])
        else if (tries === 2) reset(raw)
        else
          events(response, [
            { sequence: after, type: "progress" },
            { sequence: after + 1, type: "completed", result: trainResult }
          ])
        return true
      })
      const backend = yield* open(server.url)
      const seen: Array<number> = []
      yield* backend.train("toy", request, (event) => Effect.sync(() => seen.push(event.sequence)))
      assert.deepStrictEqual(seen, [1, 2])
      assert.deepStrictEqual(
        server.asked.flatMap(({ path }) => (path.includes("/jobs/") ? [path.split("?")[1]] : [])),
        ["after=0", "after=1", "after=1"]
      )
      assert.strictEqual(server.asked.filter(({ path }) => path.endsWith("/train")).length, 1)
    })
  )

  it.live("posts again with the same key where the backend has lost the job or the answer", () =>
    Effect.gen(function* () {
      let posts = 0
      const server = yield* fakeBackend((asked, response, raw) => {
        if (asked.path.endsWith("/train")) {
          posts += 1
          if (posts === 1) reset(raw)
          else json(response, 200, { job: `j${posts}` })
          return true
        }
        if (!asked.path.includes("/jobs/j2/")) return false
        json(response, 404, { error: { message: "no such job", code: "not_found" } })
        return true
      })
      const backend = yield* open(server.url)
      assert.strictEqual((yield* backend.train("toy", request)).step, 1)
      const bodies = server.asked.filter(({ path }) => path.endsWith("/train")).map(({ body }) => body)
      assert.deepStrictEqual([bodies.length, new Set(bodies).size], [3, 1])
    })
  )

  it.live("a failed job is an error with its fields", () =>
    Effect.gen(function* () {
      const detail = {
        message: "expected step 3",
        code: "step_conflict",
        field: "expectedStep",
        value: "0",
        expected: "3",
        advice: "resume"
      }
      const server = yield* fakeBackend((asked, response) => {
        if (!asked.path.includes("/jobs/")) return false
        events(response, [{ sequence: 1, type: "failed", error: detail }])
        return true
      })
      const error = yield* Effect.flip(Effect.flatMap(open(server.url), (backend) => backend.train("toy", request)))
      assert.deepInclude(error, detail)
    })
  )

  it.live("refuses unknown options and losses by name, before anything is sent", () =>
    Effect.gen(function* () {
      const server = yield* fakeBackend()
      const backend = yield* open(server.url)
      const sent = server.asked.length
      const unknown = { ...request, config: { learning_rate: 1e-4 } } as unknown as TrainRequest
      assert.deepInclude(yield* Effect.flip(backend.train("toy", unknown)), {
        code: "invalid_request",
        field: "config.learning_rate",
        expected: "one of loss, learningRate"
      })
      const loss = yield* Effect.flip(backend.train("toy", { ...request, config: { loss: "gspo" } }))
      assert.deepInclude(loss, { field: "config.loss", value: "gspo", expected: "one of cispo, ppo" })
      assert.strictEqual(server.asked.length, sent)
    })
  )

  it.live("JSON-01: a number that JSON does not have is refused before sending, naming its place", () =>
    Effect.gen(function* () {
      const server = yield* fakeBackend()
      const backend = yield* open(server.url)
      const bad: TrainRequest = {
        ...request,
        groups: [{ id: "g", dropped: null, trajectories: [{ id: "t", reward: Number.NaN, exchanges: [] }] }]
      }
      const error = yield* Effect.flip(backend.train("toy", bad))
      assert.deepInclude(error, { code: "invalid_request", field: "groups.0.trajectories.0.reward", value: "NaN" })
      assert.isFalse(server.asked.some(({ path }) => path.endsWith("/train")))
    })
  )
})
