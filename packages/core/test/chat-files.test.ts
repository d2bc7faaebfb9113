import { mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import { parseRecords } from "../src/data/json-records.ts"
import { readChatBytes, readChatFile, type ReadChatOptions } from "../src/data/read-chat-file.ts"

const bytes = (text: string) => new TextEncoder().encode(text)
const read = (row: unknown, options?: ReadChatOptions) =>
  readChatBytes("chat.jsonl", bytes(JSON.stringify(row)), options)
const fieldOf = (row: unknown) => read(row).errors.map(({ field, place }) => [place, field])

const file = (content: Uint8Array) =>
  Effect.acquireRelease(
    Effect.sync(() => {
      const folder = mkdtempSync(join(tmpdir(), "ludus-data-"))
      const path = join(folder, "chat.jsonl")
      writeFileSync(path, content)
      return path
    }),
    (path) => Effect.sync(() => rmSync(join(path, ".."), { recursive: true }))
  )

describe("records of a file", () => {
  const odd = Buffer.concat([
    Buffer.from([0xef, 0xbb, 0xbf]),
    Buffer.from('{"id":1}\r\n\r\n{"id":2}\r\n{bad}\r\n{"id":3}')
  ])

  it("DATA-01: a byte-order mark, CRLF, blank lines and no final newline pass; a bad line is named as editors count", () => {
    const { errors, records } = parseRecords("odd.jsonl", odd)
    assert.deepStrictEqual(records, [
      { place: "line 1", value: { id: 1 } },
      { place: "line 3", value: { id: 2 } },
      { place: "line 5", value: { id: 3 } }
    ])
    assert.deepStrictEqual(
      errors.map(({ path, place }) => [path, place]),
      [["odd.jsonl", "line 4"]]
    )
    assert.match(errors[0]?.message ?? "", /^odd\.jsonl, line 4: is .*JSON.*; expected a JSON object\./u)
  })

  it.live("DATA-01: strict reading stops there", () =>
    Effect.gen(function* () {
      const good = { messages: [{ role: "user", content: "x" }] }
      const path = yield* file(bytes(`${JSON.stringify(good)}\n\n{bad}\n{"id":3}\n`))
      const error = yield* Effect.flip(readChatFile(path))
      assert.deepStrictEqual([error.path, error.place], [path, "line 3"])
      const all = yield* readChatFile(path, { onError: "collect" })
      assert.strictEqual(all.examples.length, 1)
      assert.deepStrictEqual(
        all.errors.map(({ place }) => place),
        ["line 3", "line 4"]
      )
      const missing = yield* Effect.flip(readChatFile(`${path}.no`))
      assert.strictEqual(missing.place, "file")
    })
  )

  it("an array is read as items, and bytes that are not UTF-8 are an error of their line", () => {
    assert.deepStrictEqual(parseRecords("a.json", bytes(' \n[{"id":1},{"id":2}]\n')).records, [
      { place: "item 1", value: { id: 1 } },
      { place: "item 2", value: { id: 2 } }
    ])
    assert.strictEqual(parseRecords("a.json", bytes("[1,")).errors[0]?.place, "file")
    const latin = Buffer.concat([Buffer.from('{"id":1}\n{"id":"'), Buffer.from([0xe9]), Buffer.from('"}\n')])
    assert.deepStrictEqual(
      parseRecords("a.jsonl", latin).errors.map(({ place, value }) => [place, value]),
      [["line 2", '"bytes that are not UTF-8"']]
    )
    assert.deepStrictEqual(parseRecords("empty", bytes("")), { records: [], errors: [] })
  })
})

describe("OpenAI's form", () => {
  const call = <Given>(given: Given) => ({
    id: "c",
    type: "function" as const,
    function: { name: "f", arguments: given }
  })

  it("DATA-02: object arguments, text parts, weight 0 and the developer role are accepted; unknown keys are reported", () => {
    const row = {
      id: "row-7",
      messages: [
        { role: "developer", content: "d" },
        { role: "user", content: "u", name: "ann" },
        { role: "assistant", weight: 0, content: "skip" },
        { role: "user", content: "u2" },
        { role: "assistant", tool_calls: [call({ a: 1 })] },
        { role: "tool", tool_call_id: "c", content: [{ type: "text", text: "r" }] },
        { role: "assistant", content: "end" }
      ]
    }
    const { errors, examples, notes } = read(row)
    assert.deepStrictEqual(errors, [])
    assert.deepStrictEqual(examples, [
      {
        messages: [
          { role: "developer", content: "d" },
          { role: "user", content: "u" },
          { role: "assistant", content: "skip", weight: 0 },
          { role: "user", content: "u2" },
          { role: "assistant", content: null, tool_calls: [call('{"a":1}')] },
          { role: "tool", tool_call_id: "c", content: "r" },
          { role: "assistant", content: "end" }
        ]
      }
    ])
    assert.deepStrictEqual(notes, { "ignored: id": 1, "ignored: name of a message": 1 })
  })

  it("arguments that are text stay as they are, byte for byte", () => {
    const given = '{ "a" : 1.0,\n "b": "\\u00e9" }'
    const [example] = read({ messages: [{ role: "assistant", tool_calls: [call(given)] }] }).examples
    const [message] = example?.messages ?? []
    assert.deepStrictEqual(message, { role: "assistant", content: null, tool_calls: [call(given)] })
  })

  it("tools keep what the backend knows, deprecated functions too", () => {
    const described = { name: "add", description: "adds", parameters: { type: "object", properties: {} } }
    const messages = [{ role: "user", content: "x" }]
    const tools = [{ type: "function", function: described }]
    assert.deepStrictEqual(read({ messages, tools }).examples[0]?.tools, tools as never)
    assert.deepStrictEqual(read({ messages, functions: [described] }).examples[0]?.tools, tools as never)
    assert.deepStrictEqual(read({ messages, tools: [] }).examples, [{ messages }] as never)
  })

  for (const [what, row, field] of [
    ["no messages", { messages: [] }, "messages"],
    ["neither form", { prompt: "x" }, ""],
    ["an unknown role", { messages: [{ role: "robot", content: "x" }] }, "messages[0].role"],
    ["a reply without anything", { messages: [{ role: "assistant" }] }, "messages[0].content"],
    ["a question without content", { messages: [{ role: "user", content: null }] }, "messages[0].content"],
    ["an image", { messages: [{ role: "user", content: [{ type: "image_url" }] }] }, "messages[0].content[0].type"],
    ["another weight", { messages: [{ role: "assistant", content: "x", weight: 0.5 }] }, "messages[0].weight"],
    [
      "arguments that are not JSON",
      { messages: [{ role: "assistant", tool_calls: [call("{a:1}")] }] },
      "messages[0].tool_calls[0].function.arguments"
    ],
    [
      "a result of no call",
      {
        messages: [
          { role: "assistant", tool_calls: [call({})] },
          { role: "tool", tool_call_id: "d", content: "r" }
        ]
      },
      "messages[1].tool_call_id"
    ],
    [
      "a tool without a name",
      { messages: [{ role: "user", content: "x" }], tools: [{ type: "function", function: {} }] },
      "tools[0].function.name"
    ]
  ] as const) {
    it(`${what} is refused by line and field`, () => assert.deepStrictEqual(fieldOf(row), [["line 1", field]]))
  }
})

describe("ShareGPT's form", () => {
  const turn = (from: string, value: string) => ({ from, value })
  const add = '{"name":"add","arguments":{"a":2,"b":3}}'

  it("DATA-03: calls and observations get invented ids, an empty system is left out, tools are parsed", () => {
    const row = {
      conversations: [
        turn("human", "add 2 and 3"),
        turn("function_call", add),
        turn("observation", "5"),
        turn("gpt", "It is 5.")
      ],
      system: "",
      tools: '[{"name":"add","parameters":{"type":"object","properties":{}}}]'
    }
    assert.deepStrictEqual(read(row), {
      examples: [
        {
          messages: [
            { role: "user", content: "add 2 and 3" },
            {
              role: "assistant",
              content: null,
              tool_calls: [{ id: "c0", type: "function", function: { name: "add", arguments: '{"a":2,"b":3}' } }]
            },
            { role: "tool", tool_call_id: "c0", content: "5" },
            { role: "assistant", content: "It is 5." }
          ],
          tools: [{ type: "function", function: { name: "add", parameters: { type: "object", properties: {} } } }]
        }
      ],
      errors: [],
      notes: {}
    })
  })

  it("DATA-03: an unknown speaker is an error with the row's number", () => {
    const rows = [{ conversations: [turn("user", "x"), turn("assistant", "y")] }, { conversations: [turn("bot", "x")] }]
    const found = readChatBytes("share.json", bytes(JSON.stringify(rows)))
    assert.deepStrictEqual(found.examples, [
      {
        messages: [
          { role: "user", content: "x" },
          { role: "assistant", content: "y" }
        ]
      }
    ])
    assert.deepStrictEqual(
      found.errors.map(({ field, place, value }) => [place, field, value]),
      [["item 2", "conversations[0].from", '"bot"']]
    )
  })

  it("odd turns are taken as they are and counted", () => {
    const row = {
      conversations: [
        turn("gpt", "Hello."),
        turn("human", "a"),
        turn("human", "b"),
        turn("function_call", `[${add},${add}]`),
        turn("observation", "plain text"),
        turn("gpt", "Done.")
      ],
      system: "Be kind."
    }
    const { examples, notes } = read(row)
    const shape = examples[0]?.messages.map((message) =>
      message.role === "assistant"
        ? `assistant ${(message.tool_calls ?? []).map(({ id }) => id).join("+")}`
        : message.role === "tool"
          ? `tool ${message.tool_call_id}`
          : message.role
    )
    assert.deepStrictEqual(shape, ["system", "assistant ", "user", "user", "assistant c0+c1", "tool c0", "assistant "])
    assert.deepStrictEqual(notes, {
      "odd: begins with a reply": 1,
      "odd: two user turns in a row": 1,
      "odd: a call without an observation": 1
    })
  })

  it("other names are given as tags", () => {
    const row = {
      conversations: [
        { role: "Q", content: "x" },
        { role: "A", content: "y" }
      ]
    }
    const { examples } = read(row, { tags: { from: "role", value: "content", human: "Q", gpt: "A" } })
    assert.deepStrictEqual(
      examples[0]?.messages.map(({ role }) => role),
      ["user", "assistant"]
    )
  })

  for (const [what, turns, field] of [
    ["an observation without a call", [turn("observation", "5")], "conversations[0].from"],
    ["a call that is not JSON", [turn("function_call", "add(2, 3)")], "conversations[0].value"],
    ["a call without a name", [turn("function_call", '{"arguments":{}}')], "conversations[0].value.name"],
    ["a turn without a text", [{ from: "human" }], "conversations[0].value"]
  ] as const) {
    it(`${what} is refused`, () => assert.deepStrictEqual(fieldOf({ conversations: turns }), [["line 1", field]]))
  }
})
