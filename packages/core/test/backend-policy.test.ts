import { assert, describe, it } from "@effect/vitest"
import { Deferred, Effect, Fiber } from "effect"
import { connect } from "../src/backend/http-backend.ts"
import { hashIds } from "../src/exchange.ts"
import type { Message } from "../src/message.ts"
import { fakeBackend } from "./fake-backend.ts"
import { json } from "./fake-endpoint.ts"

const open = (url: string) => connect({ url, token: "t-1", retry: { baseMillis: 1, capMillis: 5 } })
const turn = (index: number) => ({ turn: index, maxTokens: 8, temperature: 1, seed: 7 + index, train: true })
const first: Message = { role: "user", content: "abc" }

describe("a backend's policy", () => {
  it.live("opens an episode of its own, asks in it, ends it, and keeps only the ids behind the parent", () =>
    Effect.gen(function* () {
      const server = yield* fakeBackend()
      const backend = yield* open(server.url)
      const [one, two] = yield* Effect.scoped(
        Effect.gen(function* () {
          const conversation = yield* backend.policy("toy").open({ id: "0/scenario é/3", seat: "player" })
          const one = yield* conversation.ask([first], turn(0))
          const two = yield* conversation.ask([first, one.reply, { role: "user", content: "more" }], turn(1))
          return [one, two] as const
        })
      )
      assert.deepStrictEqual(one.tokens, {
        promptIds: [1, 3],
        sampledIds: [207],
        logprobs: [-0.5],
        prefixHash: hashIds([1, 3])
      })
      assert.strictEqual(two.parent, one.id)
      assert.deepStrictEqual(two.tokens, {
        promptIds: [103],
        sampledIds: [208],
        logprobs: [-0.5],
        prefixHash: hashIds([1, 3, 207, 103])
      })
      assert.strictEqual(two.policy, "toy@0")
      const [, , opened, asked, , ended] = server.asked
      const episode = JSON.parse(opened?.body ?? "").id as string
      assert.match(episode, /^0-scenario-3-player-[0-9a-f-]{36}$/u)
      assert.strictEqual(asked?.headers["x-ludus-episode"], episode)
      assert.deepInclude(JSON.parse(asked?.body ?? ""), {
        model: "toy",
        max_completion_tokens: 8,
        temperature: 1,
        seed: 7,
        logprobs: true,
        ludus: { train: true, request: `${episode}/0` }
      })
      assert.deepStrictEqual([ended?.method, ended?.path], ["DELETE", `/v1/ludus/episodes/${episode}`])
    })
  )

  it.live("refuses ids that do not extend their parent, or that do not have their hash", () =>
    Effect.gen(function* () {
      const faults = [{ prompt_token_ids: [1, 9, 207, 103] }, { prompt_token_ids: [1, 3, 207] }, {}]
      for (const [index, expected] of [
        [0, /do not have the hash/u],
        [1, /do not extend/u],
        [2, /no ids/u]
      ] as const) {
        const server = yield* fakeBackend((asked, response) => {
          if (asked.path !== "/v1/chat/completions" || JSON.parse(asked.body).messages.length === 1) return false
          const prompt = faults[index]?.prompt_token_ids
          const hash = index === 1 ? hashIds([1, 3, 207]) : "0"
          const ludus = {
            exchange: "x",
            parent: index === 1 ? "unknown" : null,
            policy: "toy@0",
            prefixHash: hash,
            rendered: "bridged"
          }
          const choice = {
            message: { role: "assistant", content: "x" },
            finish_reason: "stop",
            token_ids: [1],
            logprobs: { content: [{ logprob: -1 }] }
          }
          json(response, 200, {
            choices: [choice],
            ludus,
            ...(prompt === undefined ? {} : { prompt_token_ids: prompt })
          })
          return true
        })
        const backend = yield* open(server.url)
        const error = yield* Effect.scoped(
          Effect.gen(function* () {
            const conversation = yield* backend.policy("toy").open({ id: "e", seat: "p" })
            const { reply } = yield* conversation.ask([first], turn(0))
            return yield* Effect.flip(conversation.ask([first, reply, first], turn(1)))
          })
        )
        assert.match(error.message, expected)
      }
    })
  )

  it.live("EP-07: interrupting 16 episodes closes 16 connections and ends 16 episodes", () =>
    Effect.gen(function* () {
      const all = yield* Deferred.make<void>()
      let waiting = 0
      const server = yield* fakeBackend((asked) => {
        if (asked.path !== "/v1/chat/completions") return false
        waiting += 1
        if (waiting === 16) Deferred.doneUnsafe(all, Effect.void)
        return true
      })
      const backend = yield* open(server.url)
      const episode = (id: number) =>
        Effect.scoped(
          Effect.flatMap(backend.policy("toy").open({ id: String(id), seat: "p" }), (conversation) =>
            conversation.ask([first], turn(0))
          )
        )
      const fiber = yield* Effect.forkChild(
        Effect.forEach(
          Array.from({ length: 16 }, (_, id) => id),
          episode,
          { concurrency: "unbounded" }
        )
      )
      yield* Deferred.await(all)
      yield* Fiber.interrupt(fiber)
      while (server.dropped() < 16) yield* Effect.sleep(5)
      assert.strictEqual(server.asked.filter(({ method }) => method === "DELETE").length, 16)
    })
  )

  it.live("a failed opening is a failure of the policy, with the status", () =>
    Effect.gen(function* () {
      const server = yield* fakeBackend((asked, response) => {
        if (asked.path !== "/v1/ludus/episodes") return false
        json(response, 422, { error: { message: "no more episodes", code: "invalid_request" } })
        return true
      })
      const backend = yield* open(server.url)
      const error = yield* Effect.flip(Effect.scoped(backend.policy("toy").open({ id: "e", seat: "p" })))
      assert.deepInclude(error, { policy: "toy", status: 422 })
      assert.include(error.message, "no more episodes")
    })
  )
})
