/** A stream that its reader leaves early: what was sampled is recorded all the same, or the episode is no training data. */
import type { ServerResponse } from "node:http"
import { assert, describe, it } from "@effect/vitest"
import { Deferred, Effect, Exit } from "effect"
import { layerHttp } from "../src/backend/http-backend.ts"
import { hashIds } from "../src/exchange.ts"
import { gatherGroups } from "../src/gather.ts"
import type { EpisodeClient } from "../src/trainable-model.ts"
import * as TrainableModel from "../src/trainable-model.ts"
import { fakeBackend } from "./fake-backend.ts"

const chunk = (more: object) =>
  `data: ${JSON.stringify({ id: "c", object: "chat.completion.chunk", created: 1, model: "toy", ...more })}\n\n`
const piece = (content: string, id: number, finish_reason: string | null = null) => ({
  choices: [
    { index: 0, delta: { content }, finish_reason, token_ids: [id], logprobs: { content: [{ logprob: -0.5 }] } }
  ]
})
const ludus = { exchange: "s-1", parent: null, policy: "toy@0", prefixHash: hashIds([1, 2]), rendered: "first" }
const beginning = chunk({ ...piece("a", 7), prompt_token_ids: [1, 2] })
const rest = `${chunk({ ...piece("b", 8, "stop"), ludus })}data: [DONE]\n\n`

/** A backend that streams the beginning of a reply, and leaves the rest of it to the test. */
const slowBackend = Effect.gen(function* () {
  const responses: Array<ServerResponse> = []
  const server = yield* fakeBackend((given, response) => {
    if (given.path !== "/v1/chat/completions") return false
    response.writeHead(200, { "content-type": "text/event-stream" })
    response.write(beginning)
    responses.push(response)
    return true
  })
  return { server, response: (index = 0) => responses[index] ?? assert.fail("nothing was asked") }
})

/** Reads one part of the stream, and leaves as told. */
const readOne = (episode: EpisodeClient, how: "break" | "abort" | "forget" | "ignore") =>
  Effect.promise(async () => {
    const stream = await episode.openai.chat.completions.create({
      model: "toy",
      messages: [{ role: "user", content: "x" }],
      stream: true
    })
    if (how === "ignore") return
    if (how === "forget") return void (await stream[Symbol.asyncIterator]().next())
    for await (const _ of stream) {
      if (how === "break") break
      stream.controller.abort()
    }
  })

describe("a stream that is left early", () => {
  for (const how of ["break", "abort", "forget", "ignore"] as const) {
    it.live(`is recorded whole (${how})`, () =>
      Effect.gen(function* () {
        const { response, server } = yield* slowBackend
        yield* Effect.gen(function* () {
          const model = yield* TrainableModel.make({ name: "toy" }).register
          const episode = yield* model.openaiForEpisode()
          yield* readOne(episode, how)
          assert.throws(() => episode.exchanges(), /still coming.*`finished`/u)
          response().end(rest)
          const exchanges = yield* episode.finished
          assert.deepStrictEqual(
            exchanges.map(({ id, reply, tokens }) => [id, reply.content, tokens?.sampledIds]),
            [["s-1", "ab", [7, 8]]]
          )
          assert.deepStrictEqual(episode.exchanges(), exchanges)
        }).pipe(Effect.scoped, Effect.provide(layerHttp({ url: server.url, token: "t-1" })))
      })
    )
  }

  it.live("is no training data where its rest does not come, or is not waited for", () =>
    Effect.gen(function* () {
      const { response, server } = yield* slowBackend
      yield* Effect.gen(function* () {
        const model = yield* TrainableModel.make({ name: "toy" }).register
        const [group] = yield* gatherGroups(
          ["s"],
          3,
          (_, { member }) =>
            Effect.gen(function* () {
              const episode = yield* model.openaiForEpisode()
              yield* readOne(episode, "break")
              if (member === 0) response(member).destroy()
              if (member === 1) response(member).end()
              return { exchanges: member === 2 ? episode.exchanges() : yield* episode.finished, reward: 1 }
            }),
          { concurrency: 1, maxExceptions: 3 }
        )
        assert.deepStrictEqual(
          group?.trajectories.map(({ failure, reward }) => [reward._tag, failure?.kind]),
          [
            ["Unscored", "infrastructure"],
            ["Unscored", "infrastructure"],
            ["Unscored", "environment"]
          ]
        )
        const messages = group?.trajectories.map(({ failure }) => failure?.message ?? "")
        assert.match(messages?.[0] ?? "", /was left before its end, and the rest did not come/u)
        assert.include(messages?.[1], "the stream was cut before its end")
        assert.match(messages?.[2] ?? "", /still coming/u)
      }).pipe(Effect.provide(layerHttp({ url: server.url, token: "t-1" })))
    })
  )

  it.live("is closed with its episode", () =>
    Effect.gen(function* () {
      const { response, server } = yield* slowBackend
      const closed = yield* Deferred.make<void>()
      yield* Effect.gen(function* () {
        const model = yield* TrainableModel.make({ name: "toy" }).register
        yield* readOne(yield* model.openaiForEpisode(), "break")
        response().once("close", () => Deferred.doneUnsafe(closed, Exit.void))
      }).pipe(Effect.scoped, Effect.provide(layerHttp({ url: server.url, token: "t-1" })))
      yield* Deferred.await(closed)
      assert.strictEqual(server.dropped(), 1)
    })
  )
})
