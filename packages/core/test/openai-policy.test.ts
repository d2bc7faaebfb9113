import { assert, describe, it } from "@effect/vitest"
import { Deferred, Effect, Fiber, Redacted } from "effect"
import { hashIds } from "../src/exchange.ts"
import type { Message } from "../src/message.ts"
import { openaiPolicy, type OpenAIPolicyOptions } from "../src/openai-policy.ts"
import { ContextOverflow, PolicyFailure } from "../src/policy.ts"
import { completion, fakeEndpoint, json, reset } from "./fake-endpoint.ts"

const messages: ReadonlyArray<Message> = [{ role: "user", content: "hello" }]
const turn = { turn: 0, maxTokens: 16, temperature: 0.7, seed: 11, train: false }
const quick = { baseMillis: 1, capMillis: 5 }
const ask = (url: string, more: Partial<OpenAIPolicyOptions> = {}, asked = messages) =>
  Effect.scoped(
    Effect.gen(function* () {
      const policy = openaiPolicy({ name: "other", baseUrl: `${url}/v1/`, model: "m", retry: quick, ...more })
      const conversation = yield* policy.open({ id: "0/s/0", seat: "player" })
      return yield* conversation.ask(asked, turn)
    })
  )

describe("openaiPolicy", () => {
  it.live("asks in the OpenAI form and takes the reply as it came", () =>
    Effect.gen(function* () {
      const server = yield* fakeEndpoint((_, response) => json(response, 200, completion("hi")))
      const answer = yield* ask(server.url, { apiKey: Redacted.make("k-1"), body: { top_p: 0.9 } })
      assert.deepStrictEqual(answer, {
        id: "other:0/s/0/player/0",
        parent: null,
        reply: { role: "assistant", content: "hi" },
        finishReason: "stop",
        policy: "other",
        attempts: 1
      })
      const { body, headers, path } = server.asked[0] ?? assert.fail("nothing was asked")
      assert.strictEqual(path, "/v1/chat/completions")
      assert.strictEqual(headers.authorization, "Bearer k-1")
      assert.deepStrictEqual(JSON.parse(body), {
        model: "m",
        messages,
        max_completion_tokens: 16,
        temperature: 0.7,
        seed: 11,
        top_p: 0.9
      })
    })
  )

  it.live("EP-02: a reset and a 503 are retried with the same body, and counted", () =>
    Effect.gen(function* () {
      const server = yield* fakeEndpoint((_, response, request) => {
        if (server.asked.length === 1) return reset(request)
        if (server.asked.length === 2) return json(response, 503, { error: { message: "busy" } })
        json(response, 200, completion("hi"))
      })
      const answer = yield* ask(server.url)
      assert.strictEqual(answer.attempts, 3)
      assert.strictEqual(new Set(server.asked.map(({ body }) => body)).size, 1)
    })
  )

  it.live("EP-02: an answer that is cut in its body is asked for again", () =>
    Effect.gen(function* () {
      const server = yield* fakeEndpoint((_, response) => {
        if (server.asked.length > 1) return json(response, 200, completion("hi"))
        response.writeHead(200, { "content-length": "1000" })
        response.write('{"id":', () => response.destroy())
      })
      assert.strictEqual((yield* ask(server.url)).attempts, 2)
    })
  )

  it.live("EP-02: 400, 401, 403, 404 and 422 fail at once, with the endpoint's words", () =>
    Effect.gen(function* () {
      for (const status of [400, 401, 403, 404, 422]) {
        const server = yield* fakeEndpoint((_, response) =>
          json(response, status, { error: { message: "you may not" } })
        )
        const error = yield* Effect.flip(ask(server.url))
        assert.instanceOf(error, PolicyFailure)
        assert.deepInclude(error, { policy: "other", status, attempts: 1 })
        assert.include(error.message, "you may not")
        assert.strictEqual(server.asked.length, 1)
      }
    })
  )

  it.live("LOOP-10: both wordings of a prompt that is too long are an ending, never retried", () =>
    Effect.gen(function* () {
      for (const message of [
        "maximum context length is 8192 tokens, your request has 8311",
        "max_tokens must be at least 1, got -17"
      ]) {
        const server = yield* fakeEndpoint((_, response) => json(response, 400, { error: { message } }))
        const error = yield* Effect.flip(ask(server.url))
        assert.instanceOf(error, ContextOverflow)
        assert.strictEqual(error.message, message)
        assert.strictEqual(server.asked.length, 1)
      }
    })
  )

  it.live("fails with the deadline where no answer comes", () =>
    Effect.gen(function* () {
      const server = yield* fakeEndpoint(() => undefined)
      const error = yield* Effect.flip(ask(server.url, { deadline: "50 millis" }))
      assert.include(error.message, "no answer within its deadline")
      assert.deepInclude(error, { _tag: "PolicyFailure", attempts: 1 })
    })
  )

  it.live("EP-07: interrupting closes the connections of all requests in flight", () =>
    Effect.gen(function* () {
      const all = yield* Deferred.make<void>()
      const server = yield* fakeEndpoint(() => {
        if (server.asked.length === 16) Deferred.doneUnsafe(all, Effect.void)
      })
      const fiber = yield* Effect.forkChild(
        Effect.forEach(Array.from({ length: 16 }), () => ask(server.url), { concurrency: "unbounded" })
      )
      yield* Deferred.await(all)
      yield* Fiber.interrupt(fiber)
      while (server.dropped() < 16) yield* Effect.sleep(5)
      assert.strictEqual(server.dropped(), 16)
      assert.strictEqual(server.asked.length, 16)
    })
  )

  it.live("LOOP-07: a reply without content is stored as received and sent back in the endpoint's form", () =>
    Effect.gen(function* () {
      const call = { id: "c1", type: "function" as const, function: { name: "now", arguments: "{}" } }
      const message = { role: "assistant" as const, content: null, tool_calls: [call] }
      const server = yield* fakeEndpoint((_, response) =>
        json(response, 200, { choices: [{ message, finish_reason: "tool_calls" }] })
      )
      const { reply } = yield* ask(server.url)
      assert.deepStrictEqual(reply, message)
      const { content: _, ...without } = message
      for (const [form, expected] of [
        ["null", message],
        ["empty", { ...message, content: "" }],
        ["omit", without]
      ] as const) {
        yield* ask(server.url, { nullContent: form }, [...messages, reply])
        assert.deepStrictEqual(JSON.parse(server.asked.at(-1)?.body ?? "").messages[1], expected)
      }
    })
  )

  it.live("keeps ids where the endpoint gives them, only those behind the exchange that the prompt extends", () =>
    Effect.gen(function* () {
      const prompts = [
        [1, 2],
        [1, 2, 7, 8, 3],
        [1, 2, 9]
      ]
      const server = yield* fakeEndpoint((_, response) => {
        const choice = {
          message: { role: "assistant", content: "x" },
          finish_reason: "stop",
          token_ids: [7, 8],
          logprobs: { content: [{ logprob: -0.5 }, { logprob: -0.25 }] }
        }
        json(response, 200, { prompt_token_ids: prompts[server.asked.length - 1], choices: [choice] })
      })
      const answers = yield* Effect.scoped(
        Effect.gen(function* () {
          const conversation = yield* openaiPolicy({ name: "v", baseUrl: `${server.url}/v1`, model: "m" }).open({
            id: "e",
            seat: "p"
          })
          return yield* Effect.forEach([0, 1, 2], (index) => conversation.ask(messages, { ...turn, turn: index }))
        })
      )
      assert.deepStrictEqual(
        answers.map(({ parent, tokens }) => [parent, tokens?.promptIds, tokens?.prefixHash]),
        [
          [null, [1, 2], hashIds([1, 2])],
          ["v:e/p/0", [3], hashIds([1, 2, 7, 8, 3])],
          // Another history: a new row, from its beginning.
          [null, [1, 2, 9], hashIds([1, 2, 9])]
        ]
      )
    })
  )

  it.live(
    "TOK-08, TOK-18: without numeric ids the answer can be read but not trained; none are parsed out of text",
    () =>
      Effect.gen(function* () {
        const content = [
          { token: "token_id:872", logprob: -0.1 },
          { token: " there", logprob: -0.3 }
        ]
        const partial = [
          { logprobs: null, token_ids: null },
          { logprobs: { content } },
          { logprobs: { content }, token_ids: [872] },
          { logprobs: null, token_ids: [872, 630] }
        ]
        const server = yield* fakeEndpoint((_, response) =>
          json(response, 200, {
            prompt_token_ids: [1, 2],
            choices: [{ message: { role: "assistant", content: "yes" }, ...partial[server.asked.length - 1] }]
          })
        )
        for (const _ of partial) {
          const answer = yield* ask(server.url)
          assert.strictEqual(answer.reply.content, "yes")
          assert.notProperty(answer, "tokens")
        }
      })
  )
})
