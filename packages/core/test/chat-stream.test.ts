import { assert, describe, it } from "@effect/vitest"
import { assembleChatStream } from "../src/chat-stream.ts"

const stream = (chunks: ReadonlyArray<unknown>, end = "data: [DONE]\n\n") =>
  chunks.map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`).join(": still there\n\n") + end
const piece = (delta: object, more: object = {}) => ({ choices: [{ index: 0, delta, ...more }] })

describe("assembleChatStream", () => {
  it("joins text, tool calls, ids and log-probabilities", () => {
    const call = (index: number, more: object) => ({ tool_calls: [{ index, ...more }] })
    const reply = assembleChatStream(
      stream([
        { ...piece({ role: "assistant", content: "" }), prompt_token_ids: [1, 2] },
        piece({ content: "a" }, { token_ids: [7], logprobs: { content: [{ token: "a", logprob: -1 }] } }),
        piece(call(0, { id: "c0", type: "function", function: { name: "look", arguments: '{"q"' } })),
        piece(call(1, { id: "c1", function: { name: "stop", arguments: "{}" } })),
        piece(call(0, { function: { arguments: ":1}" } }), {
          token_ids: [8, 9],
          logprobs: { content: [{ logprob: -2 }, { logprob: -3 }] }
        }),
        piece({}, { finish_reason: "tool_calls" }),
        { choices: [], usage: { total_tokens: 5 } }
      ])
    )
    const of = (id: string, name: string, text: string) => ({
      id,
      type: "function",
      function: { name, arguments: text }
    })
    assert.deepStrictEqual(reply, {
      prompt_token_ids: [1, 2],
      ludus: null,
      choices: [
        {
          message: {
            role: "assistant",
            content: "a",
            tool_calls: [of("c0", "look", '{"q":1}'), of("c1", "stop", "{}")]
          },
          finish_reason: "tool_calls",
          token_ids: [7, 8, 9],
          logprobs: { content: [{ logprob: -1 }, { logprob: -2 }, { logprob: -3 }] },
          ludus: null
        }
      ]
    } as never)
  })

  it("keeps the choices of n > 1 apart", () => {
    const chunk = (index: number, content: string) => ({ choices: [{ index, delta: { content } }] })
    const reply = assembleChatStream(stream([chunk(1, "x"), chunk(0, "a"), chunk(1, "y"), chunk(0, "b")]))
    assert.deepStrictEqual(
      reply.choices.map(({ message }) => message.content),
      ["ab", "xy"]
    )
  })

  it("refuses a stream that was cut", () => {
    assert.throws(() => assembleChatStream(stream([piece({ content: "a" })], "")), /cut before its end/u)
  })
})
