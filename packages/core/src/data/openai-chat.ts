/**
 * OpenAI's fine-tuning form: `{ messages, tools? }` a line. Tool arguments come as text or as an object, contents as
 * text, `null` or a list of text parts: all become the one form that goes to the backend.
 */
import type { SftExample, SftMessage } from "../backend/protocol.ts"
import type { ToolCall } from "../message.ts"
import { FlawedRecord } from "./data-error.ts"
import { type Count, fieldsAt, type Fields, isFields, jsonAt, listAt, textAt } from "./record-fields.ts"
import { toolSpecs } from "./tool-specs.ts"

const ROW_KEYS = new Set(["messages", "tools", "functions", "parallel_tool_calls"])
const MESSAGE_KEYS = new Set([
  "role",
  "content",
  "weight",
  "tool_calls",
  "tool_call_id",
  "reasoning_content",
  "refusal"
])

/** Reads one row; throws a {@link FlawedRecord}. `count` hears of keys that are left out. */
export const fromOpenAI = (value: unknown, count: Count): SftExample => {
  const row = fieldsAt(value, "")
  for (const key of Object.keys(row)) if (!ROW_KEYS.has(key)) count(`ignored: ${key}`)
  const messages: Array<SftMessage> = []
  const given = listAt(row["messages"], "messages")
  if (given.length === 0) throw new FlawedRecord("messages", given, "at least one message")
  let open: ReadonlyArray<string> = []
  for (const [index, item] of given.entries()) {
    const message = toMessage(fieldsAt(item, `messages[${index}]`), `messages[${index}]`, open, count)
    if (message.role === "assistant") open = (message.tool_calls ?? []).map(({ id }) => id)
    messages.push(message)
  }
  const tools = row["tools"] ?? row["functions"]
  const specs =
    tools === undefined || tools === null ? [] : toolSpecs(tools, row["tools"] ? "tools" : "functions", count)
  return { messages, ...(specs.length === 0 ? {} : { tools: specs }) }
}

/** `open`: ids of the calls that the last reply made. */
const toMessage = (message: Fields, at: string, open: ReadonlyArray<string>, count: Count): SftMessage => {
  for (const key of Object.keys(message)) {
    const empty = message[key] === null || message[key] === undefined
    if (!MESSAGE_KEYS.has(key) && !empty) count(`ignored: ${key} of a message`)
  }
  const { role, weight } = message
  if (weight !== undefined && weight !== null && weight !== 0 && weight !== 1) {
    throw new FlawedRecord(`${at}.weight`, weight, "0 or 1")
  }
  if (role !== "assistant" && typeof weight === "number") count(`ignored: weight of a ${String(role)} message`)
  switch (role) {
    case "system":
    case "developer":
    case "user":
      return { role, content: contentText(message["content"], `${at}.content`) }
    case "tool": {
      const id = textAt(message["tool_call_id"], `${at}.tool_call_id`)
      if (!open.includes(id)) {
        const expected = `the id of a call in the reply before it: ${open.join(", ") || "there is none"}`
        throw new FlawedRecord(`${at}.tool_call_id`, id, expected)
      }
      return { role, tool_call_id: id, content: contentText(message["content"], `${at}.content`) }
    }
    case "assistant":
      return toReply(message, at)
    default:
      throw new FlawedRecord(`${at}.role`, role, "system, developer, user, assistant or tool")
  }
}

const toReply = (message: Fields, at: string): SftMessage => {
  const { content, reasoning_content: reasoning, tool_calls: calls, weight } = message
  const made = calls === undefined || calls === null ? [] : listAt(calls, `${at}.tool_calls`)
  if (made.length === 0 && (content === undefined || content === null)) {
    throw new FlawedRecord(`${at}.content`, content, "a text, or tool_calls")
  }
  const none = content === undefined || content === null
  return {
    role: "assistant",
    content: none ? null : contentText(content, `${at}.content`),
    ...(typeof reasoning === "string" ? { reasoning_content: reasoning } : {}),
    ...(made.length === 0 ? {} : { tool_calls: made.map((call, index) => toCall(call, `${at}.tool_calls[${index}]`)) }),
    ...(weight === 0 || weight === 1 ? { weight } : {})
  }
}

const toCall = (value: unknown, at: string): ToolCall => {
  const call = fieldsAt(value, at)
  const made = fieldsAt(call["function"], `${at}.function`)
  return {
    id: textAt(call["id"], `${at}.id`),
    type: "function",
    function: {
      name: textAt(made["name"], `${at}.function.name`),
      arguments: argumentsText(made["arguments"], `${at}.function.arguments`)
    }
  }
}

/** Arguments as JSON text: text stays as it is, byte for byte, an object is written without spaces. */
export const argumentsText = (value: unknown, field: string): string => {
  if (value === undefined || value === null || value === "") return "{}"
  if (isFields(value)) return JSON.stringify(value)
  const written = textAt(value, field)
  if (!isFields(jsonAt(written, field))) throw new FlawedRecord(field, written, "JSON text of an object")
  return written
}

const contentText = (value: unknown, field: string): string => {
  if (typeof value === "string") return value
  return listAt(value, field)
    .map((part, index) => {
      const { text, type } = fieldsAt(part, `${field}[${index}]`)
      if (type !== "text") throw new FlawedRecord(`${field}[${index}].type`, type, `"text": only text can be trained`)
      return textAt(text, `${field}[${index}].text`)
    })
    .join("")
}
