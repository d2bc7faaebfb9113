import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import type { BackendError } from "../src/backend/backend.ts"
import { layerHttp } from "../src/backend/http-backend.ts"
import { hashIds } from "../src/exchange.ts"
import { gatherGroups } from "../src/gather.ts"
import * as Progress from "../src/progress.ts"
import * as TrainableModel from "../src/trainable-model.ts"
import type { InvalidTrainRequest } from "../src/train-request.ts"
import { events, fakeBackend, trainResult } from "./fake-backend.ts"
import { json, reset } from "./fake-endpoint.ts"

const user = (content: string) => ({ role: "user" as const, content })

describe("TrainableModel", () => {
  it.live("a whole loop by hand: register, gather with the official client, train", () =>
    Effect.gen(function* () {
      const server = yield* fakeBackend()
      const program = Effect.gen(function* () {
        const model = yield* TrainableModel.make({ name: "toy", base: { source: "random" } }).register
        const groups = yield* gatherGroups(["a", "b"], 2, (scenario, { seed }) =>
          Effect.gen(function* () {
            const episode = yield* model.openaiForEpisode()
            const create = (
              messages: ReadonlyArray<ReturnType<typeof user> | { role: "assistant"; content: string | null }>
            ) =>
              Effect.tryPromise(() =>
                episode.openai.chat.completions.create({
                  model: model.inferenceName(),
                  messages: [...messages],
                  seed: seed % 1000
                })
              )
            const first = yield* create([user(scenario)])
            const reply = first.choices[0]?.message ?? assert.fail("no reply")
            yield* create([user(scenario), { role: "assistant", content: reply.content }, user("again")])
            return { exchanges: episode.exchanges(), reward: Number(reply.content?.slice(6)) }
          })
        )
        assert.strictEqual(yield* model.step, 0)
        const result = yield* model.train(groups, { learningRate: 1e-4 })
        assert.strictEqual(result.policy, "toy@1")
        assert.strictEqual(yield* model.step, 1)
        assert.strictEqual(model.inferenceName(1), "toy@1")
        return groups
      })
      const groups = yield* Effect.provide(program, layerHttp({ url: server.url, token: "t-1" }))
      const exchanges = groups[0]?.trajectories[0]?.exchanges ?? []
      assert.deepStrictEqual(
        exchanges.map(({ messages, tokens }) => [messages, tokens?.promptIds]),
        [
          [[user("a")], [1, 1]],
          [[user("again")], [103]]
        ]
      )
      assert.strictEqual(exchanges[1]?.parent, exchanges[0]?.id)
      const sampled = exchanges[0]?.tokens?.sampledIds[0] ?? 0
      assert.strictEqual(exchanges[1]?.tokens?.prefixHash, hashIds([1, 1, sampled, 103]))

      const chats = server.asked.filter(({ path }) => path === "/v1/chat/completions")
      assert.strictEqual(chats.length, 8)
      assert.match(String(chats[0]?.headers.authorization), /^Bearer key-toy-/u)
      assert.deepInclude(JSON.parse(chats[0]?.body ?? "").ludus, { train: true })
      assert.strictEqual(JSON.parse(chats[0]?.body ?? "").logprobs, true)
      assert.strictEqual(server.asked.filter(({ method }) => method === "DELETE").length, 4)
      const trained = JSON.parse(server.asked.find(({ path }) => path.endsWith("/train"))?.body ?? "")
      assert.match(trained.key, /^toy:0:[0-9a-f]{16}$/u)
      assert.deepStrictEqual(
        trained.groups.map(({ trajectories }: { trajectories: Array<unknown> }) => trajectories.length),
        [2, 2]
      )
    })
  )

  it.live("publishes what is odd about a batch", () =>
    Effect.gen(function* () {
      const server = yield* fakeBackend()
      const seen: Array<Progress.Event> = []
      yield* Effect.gen(function* () {
        const model = yield* TrainableModel.make({ name: "toy" }).register
        const groups = yield* gatherGroups(["a"], 2, () =>
          Effect.gen(function* () {
            const episode = yield* model.openaiForEpisode()
            yield* Effect.tryPromise(() =>
              episode.openai.chat.completions.create({ model: "toy", messages: [user("x")], seed: 7 })
            )
            return { exchanges: episode.exchanges(), reward: 1 }
          })
        )
        yield* model.train(groups)
      }).pipe(
        Effect.provide(layerHttp({ url: server.url, token: "t-1" })),
        Effect.provideService(Progress.Sink, { publish: (event) => Effect.sync(() => seen.push(event)) })
      )
      assert.isTrue(
        seen.some((event) => event._tag === "Notice" && event.message.startsWith("identical group: 2 of 2"))
      )
    })
  )

  it.live("says why groups without exchanges were not trained", () =>
    Effect.gen(function* () {
      const untrained = { ...trainResult, step: 0, trained: false, policy: "toy@0", reasons: { no_groups: 1 } }
      const server = yield* fakeBackend((given, response) => {
        if (!given.path.startsWith("/v1/ludus/jobs/")) return false
        events(response, [{ sequence: 1, type: "completed", result: untrained }])
        return true
      })
      const seen: Array<Progress.Event> = []
      const result = yield* Effect.gen(function* () {
        const model = yield* TrainableModel.make({ name: "toy" }).register
        return yield* model.train(
          yield* gatherGroups(["a", "b", "c"], 2, (scenario) =>
            Effect.succeed({ exchanges: [], reward: scenario === "c" ? Number.NaN : 1 })
          )
        )
      }).pipe(
        Effect.provide(layerHttp({ url: server.url, token: "t-1" })),
        Effect.provideService(Progress.Sink, { publish: (event) => Effect.sync(() => seen.push(event)) })
      )
      assert.deepStrictEqual(result.reasons, { dropped_no_exchanges: 2, dropped_no_scored: 1 })
      assert.deepStrictEqual(
        seen.map((event) => (event._tag === "Notice" ? event.message.split(":")[0] : event._tag)),
        ["Group 0", "Group 1", "Group 2 has no scored member"]
      )
    })
  )

  it.live("an option that is unknown or wrong is refused by name, and nothing is sent", () =>
    Effect.gen(function* () {
      const server = yield* fakeBackend()
      yield* Effect.gen(function* () {
        const register = (options: object) => Effect.flip(TrainableModel.make({ name: "toy", ...options }).register)
        for (const [options, found] of [
          [{ bogus: 1 }, { field: "bogus", value: "1", expected: "one of the options name, base, lora, seed" }],
          [{ lora: { rank: 8, alpha: 16, dropuot: 0.1 } }, { field: "lora.dropuot", value: "0.1" }],
          [{ base: { source: "random", revison: "x" } }, { field: "base.revison", value: '"x"' }],
          [{ seed: Number.NaN }, { field: "seed", value: "NaN", expected: "an integer" }],
          [{ name: "../x" }, { field: "name", value: '"../x"' }]
        ] as const) {
          assert.deepInclude(yield* register(options), { _tag: "BackendError", code: "invalid_request", ...found })
        }
        assert.isFalse(server.asked.some(({ path }) => path.startsWith("/v1/ludus/models")))
        const model = yield* TrainableModel.make({ name: "toy" }).register
        const before = server.asked.length
        const wrong = { bogus: 1 } as object
        const field = <A, R>(refused: Effect.Effect<A, BackendError | InvalidTrainRequest, R>) =>
          Effect.map(Effect.flip(refused), (error) => error.field)
        const fields = [
          yield* field(TrainableModel.fork({ name: "other", model: "toy", ...wrong })),
          yield* field(model.sft([], wrong)),
          yield* field(model.sft([], {}, wrong)),
          yield* field(model.train([], wrong)),
          yield* field(model.deleteCheckpoints(wrong)),
          yield* field(model.exportTo("/out", wrong))
        ]
        assert.deepStrictEqual(fields, ["bogus", "bogus", "bogus", "config.bogus", "bogus", "bogus"])
        assert.strictEqual(server.asked.length, before)
      }).pipe(Effect.provide(layerHttp({ url: server.url, token: "t-1" })))
    })
  )

  it.live(
    "EP-02: the episode's client retries with the same request id and counts; refusals stay the client's errors",
    () =>
      Effect.gen(function* () {
        let asked = 0
        const server = yield* fakeBackend((given, response, request) => {
          if (given.path !== "/v1/chat/completions") return false
          asked += 1
          if (asked === 1) reset(request)
          else if (asked === 2) json(response, 503, { error: { message: "busy" } })
          else if (asked === 4)
            json(response, 400, { error: { message: "temperature 0 cannot be trained", code: "invalid_request" } })
          else return false
          return true
        })
        yield* Effect.gen(function* () {
          const model = yield* TrainableModel.make({ name: "toy" }).register
          const { exchanges, openai } = yield* model.openaiForEpisode()
          const create = Effect.tryPromise({
            try: () => openai.chat.completions.create({ model: "toy", messages: [user("x")] }),
            catch: (error) => error as Error & { readonly status?: number }
          })
          yield* create
          assert.deepStrictEqual(
            exchanges().map(({ attempts }) => attempts),
            [3]
          )
          const error = yield* Effect.flip(create)
          assert.strictEqual(error.status, 400)
          assert.include(error.message, "temperature 0 cannot be trained")
        }).pipe(Effect.scoped, Effect.provide(layerHttp({ url: server.url, token: "t-1" })))
        const ids = server.asked.flatMap(({ body, path }) =>
          path === "/v1/chat/completions" ? [JSON.parse(body).ludus.request] : []
        )
        assert.deepStrictEqual([ids[0] === ids[2], ids[2] === ids[3]], [true, false])
      })
  )

  it.live("a streamed reply is recorded like any other; one that is cut is an error", () =>
    Effect.gen(function* () {
      const ludus = { exchange: "s-1", parent: null, policy: "toy@0", prefixHash: hashIds([1, 2]), rendered: "first" }
      const chunk = (more: object) =>
        `data: ${JSON.stringify({ id: "c", object: "chat.completion.chunk", created: 1, model: "toy", ...more })}\n\n`
      const choice = (content: string, id: number, more: object = {}) => ({
        choices: [
          {
            index: 0,
            delta: { content },
            finish_reason: null,
            token_ids: [id],
            logprobs: { content: [{ logprob: -0.5 }] },
            ...more
          }
        ]
      })
      let cut = false
      const server = yield* fakeBackend((given, response) => {
        if (given.path !== "/v1/chat/completions") return false
        response.writeHead(200, { "content-type": "text/event-stream" })
        response.write(
          chunk({
            prompt_token_ids: [1, 2],
            choices: [{ index: 0, delta: { role: "assistant" }, finish_reason: null }]
          })
        )
        response.write(chunk(choice("hé", 7)))
        if (cut) response.end()
        else response.end(`${chunk({ ...choice("llo", 8, { finish_reason: "stop" }), ludus })}data: [DONE]\n\n`)
        return true
      })
      yield* Effect.gen(function* () {
        const model = yield* TrainableModel.make({ name: "toy" }).register
        const { exchanges, openai } = yield* model.openaiForEpisode()
        const read = Effect.tryPromise(async () => {
          let text = ""
          for await (const part of await openai.chat.completions.create({
            model: "toy",
            messages: [user("x")],
            stream: true
          }))
            text += part.choices[0]?.delta.content ?? ""
          return text
        })
        assert.strictEqual(yield* read, "héllo")
        assert.deepInclude(exchanges()[0], {
          id: "s-1",
          reply: { role: "assistant", content: "héllo" },
          finishReason: "stop",
          tokens: { promptIds: [1, 2], sampledIds: [7, 8], logprobs: [-0.5, -0.5], prefixHash: ludus.prefixHash }
        })
        cut = true
        yield* Effect.flip(read)
        assert.strictEqual(exchanges().length, 1)
      }).pipe(Effect.scoped, Effect.provide(layerHttp({ url: server.url, token: "t-1" })))
    })
  )
})
