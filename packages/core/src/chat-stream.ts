/**
 * A streamed chat completion, put together again: the same reply that an unstreamed request gets.
 */
import { Schema } from "effect"
import { LudusReply } from "./backend/protocol.ts"
import { ChatReply } from "./chat-wire.ts"

const optional = <S extends Schema.Constraint>(schema: S) => Schema.optionalKey(Schema.NullOr(schema))

const ToolCallDelta = Schema.Struct({
  index: Schema.Natural,
  id: optional(Schema.String),
  function: optional(Schema.Struct({ name: optional(Schema.String), arguments: optional(Schema.String) }))
})

const Chunk = Schema.Struct({
  choices: Schema.Array(
    Schema.Struct({
      index: Schema.Natural,
      delta: optional(
        Schema.Struct({
          content: optional(Schema.String),
          reasoning_content: optional(Schema.String),
          tool_calls: optional(Schema.Array(ToolCallDelta))
        })
      ),
      finish_reason: optional(Schema.String),
      token_ids: optional(Schema.Array(Schema.Natural)),
      logprobs: optional(Schema.Struct({ content: optional(Schema.Array(Schema.Struct({ logprob: Schema.Finite }))) })),
      ludus: optional(LudusReply)
    })
  ),
  prompt_token_ids: optional(Schema.Array(Schema.Natural)),
  ludus: optional(LudusReply)
})
type Chunk = typeof Chunk.Type

const decodeChunk = Schema.decodeUnknownSync(Schema.fromJsonString(Chunk))
const decodeReply = Schema.decodeUnknownSync(ChatReply)

/** The whole reply from the text of its event stream. Throws where the stream is no chat completion, or was cut. */
export const assembleChatStream = (text: string): ChatReply => {
  const data = text.split(/\r?\n/u).flatMap((line) => (line.startsWith("data:") ? [line.slice(5).trim()] : []))
  if (data.at(-1) !== "[DONE]") throw new Error("the stream was cut before its end")
  const chunks = data.slice(0, -1).map((line) => decodeChunk(line))
  const indexes = [...new Set(chunks.flatMap((chunk) => chunk.choices.map(({ index }) => index)))].toSorted(
    (a, b) => a - b
  )
  return decodeReply({
    prompt_token_ids: last(chunks.map((chunk) => chunk.prompt_token_ids)),
    ludus: last(chunks.map((chunk) => chunk.ludus)),
    choices: indexes.map((index) =>
      assembleChoice(chunks.flatMap((chunk) => chunk.choices.filter((choice) => choice.index === index)))
    )
  })
}

const assembleChoice = (parts: Chunk["choices"]) => {
  const join = (read: (part: Chunk["choices"][number]) => string | null | undefined) => {
    const texts = parts.map(read).filter((text) => typeof text === "string")
    return texts.length === 0 ? null : texts.join("")
  }
  const reasoning = join((part) => part.delta?.reasoning_content)
  const calls = assembleCalls(parts.flatMap((part) => part.delta?.tool_calls ?? []))
  return {
    message: {
      role: "assistant",
      content: join((part) => part.delta?.content),
      ...(reasoning === null ? {} : { reasoning_content: reasoning }),
      ...(calls.length === 0 ? {} : { tool_calls: calls })
    },
    finish_reason: last(parts.map((part) => part.finish_reason)),
    token_ids: parts.flatMap((part) => part.token_ids ?? []),
    logprobs: { content: parts.flatMap((part) => part.logprobs?.content ?? []) },
    ludus: last(parts.map((part) => part.ludus))
  }
}

/** Name and arguments of a call come in pieces; its id comes once. */
const assembleCalls = (deltas: ReadonlyArray<typeof ToolCallDelta.Type>) => {
  const calls = new Map<number, { id: string; type: "function"; function: { name: string; arguments: string } }>()
  for (const delta of deltas) {
    const call = calls.get(delta.index) ?? { id: "", type: "function" as const, function: { name: "", arguments: "" } }
    call.id ||= delta.id ?? ""
    call.function.name += delta.function?.name ?? ""
    call.function.arguments += delta.function?.arguments ?? ""
    calls.set(delta.index, call)
  }
  return [...calls.entries()].toSorted(([a], [b]) => a - b).map(([, call]) => call)
}

const last = <A>(items: ReadonlyArray<A | null | undefined>): A | null => items.findLast((item) => item != null) ?? null
