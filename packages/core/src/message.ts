/**
 * Chat messages in the OpenAI form. They are kept as received: `null`, `""` and a missing `content` stay what they were.
 */
import { Schema } from "effect"

/** Plain text, or the parts form of the OpenAI API (text, images, ...), kept as it came. */
export const Content = Schema.Union([
  Schema.String,
  Schema.Null,
  Schema.Array(Schema.Record(Schema.String, Schema.Unknown))
])

/** A function call by the model; `arguments` is the byte-exact text that the model wrote, not always valid JSON. */
export const ToolCall = Schema.Struct({
  id: Schema.String,
  type: Schema.Literal("function"),
  function: Schema.Struct({ name: Schema.String, arguments: Schema.String })
})
export type ToolCall = typeof ToolCall.Type

export const SystemMessage = Schema.Struct({ role: Schema.Literals(["system", "developer"]), content: Content })
export const UserMessage = Schema.Struct({ role: Schema.Literal("user"), content: Content })
export const AssistantMessage = Schema.Struct({
  role: Schema.Literal("assistant"),
  content: Schema.optionalKey(Content),
  reasoning_content: Schema.optionalKey(Schema.NullOr(Schema.String)),
  tool_calls: Schema.optionalKey(Schema.NullOr(Schema.Array(ToolCall)))
})
export type AssistantMessage = typeof AssistantMessage.Type
export const ToolMessage = Schema.Struct({
  role: Schema.Literal("tool"),
  tool_call_id: Schema.String,
  content: Content
})

export const Message = Schema.Union([SystemMessage, UserMessage, AssistantMessage, ToolMessage])
export type Message = typeof Message.Type

/** The text of a message: `null` and a missing content are the empty text, parts are joined, never the word "null". */
export const text = (message: { readonly content?: typeof Content.Type }): string => {
  const content = message.content
  if (content === undefined || content === null) return ""
  if (typeof content === "string") return content
  return content.map((part) => (typeof part["text"] === "string" ? part["text"] : "")).join("")
}
