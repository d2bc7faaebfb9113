/**
 * The ShareGPT form: `{ conversations: [{ from, value }], system?, tools? }`. It has no call ids, so they are invented:
 * `c0`, `c1`, ... Odd turns that still make sense (a reply first, two user turns in a row, a call that nobody answered)
 * are taken as they are and counted; an observation without a call is refused.
 */
import type { SftExample, SftMessage } from "../backend/protocol.ts"
import type { ToolCall } from "../message.ts"
import { FlawedRecord } from "./data-error.ts"
import { argumentsText } from "./openai-chat.ts"
import { type Count, fieldsAt, jsonAt, listAt, textAt } from "./record-fields.ts"
import { toolSpecs } from "./tool-specs.ts"

/** Other names for what a file calls `from`, `value` and its speakers. */
export interface ShareGptTags {
  readonly from?: string
  readonly value?: string
  readonly human?: string
  readonly gpt?: string
  readonly functionCall?: string
  readonly observation?: string
  readonly system?: string
}

type Speaker = "human" | "gpt" | "function_call" | "observation" | "system"

const ROW_KEYS = new Set(["conversations", "system", "tools"])

const speakers = (tags: ShareGptTags): ReadonlyMap<unknown, Speaker> =>
  new Map<unknown, Speaker>([
    ["human", "human"],
    ["user", "human"],
    ["gpt", "gpt"],
    ["assistant", "gpt"],
    ["function_call", "function_call"],
    ["observation", "observation"],
    ["tool", "observation"],
    ["system", "system"],
    [tags.human ?? "human", "human"],
    [tags.gpt ?? "gpt", "gpt"],
    [tags.functionCall ?? "function_call", "function_call"],
    [tags.observation ?? "observation", "observation"],
    [tags.system ?? "system", "system"]
  ])

/** Reads one item; throws a {@link FlawedRecord}. `count` hears of odd turns and of keys that are left out. */
export const fromShareGpt = (value: unknown, count: Count, tags: ShareGptTags = {}): SftExample => {
  const item = fieldsAt(value, "")
  for (const key of Object.keys(item)) if (!ROW_KEYS.has(key)) count(`ignored: ${key}`)
  const known = speakers(tags)
  const turns = listAt(item["conversations"], "conversations")
  if (turns.length === 0) throw new FlawedRecord("conversations", turns, "at least one turn")
  const system = item["system"] ?? ""
  const messages: Array<SftMessage> = system === "" ? [] : [{ role: "system", content: textAt(system, "system") }]
  let calls = 0
  let open: Array<string> = []
  let previous: Speaker | undefined
  for (const [index, turn] of turns.entries()) {
    const at = `conversations[${index}]`
    const fields = fieldsAt(turn, at)
    const [fromKey, valueKey] = [tags.from ?? "from", tags.value ?? "value"]
    const from = fields[fromKey]
    const speaker = known.get(from)
    if (speaker === undefined)
      throw new FlawedRecord(`${at}.${fromKey}`, from, `one of ${[...known.keys()].join(", ")}`)
    const text = textAt(fields[valueKey], `${at}.${valueKey}`)
    if (index === 0 && (speaker === "gpt" || speaker === "function_call")) count("odd: begins with a reply")
    if (speaker === previous && speaker === "human") count("odd: two user turns in a row")
    if (open.length > 0 && speaker !== "observation") {
      count("odd: a call without an observation")
      open = []
    }
    previous = speaker
    switch (speaker) {
      case "system":
        if (text !== "") messages.push({ role: "system", content: text })
        break
      case "human":
        messages.push({ role: "user", content: text })
        break
      case "gpt":
        messages.push({ role: "assistant", content: text })
        break
      case "function_call": {
        const made = toCalls(text, `${at}.${valueKey}`, calls)
        calls += made.length
        open = made.map(({ id }) => id)
        messages.push({ role: "assistant", content: null, tool_calls: made })
        break
      }
      case "observation": {
        const id = open.shift()
        if (id === undefined) throw new FlawedRecord(`${at}.${fromKey}`, from, "a function_call before it")
        messages.push({ role: "tool", tool_call_id: id, content: text })
        break
      }
    }
  }
  const tools = toolsOf(item["tools"], count)
  return { messages, ...(tools.length === 0 ? {} : { tools }) }
}

const toCalls = (text: string, field: string, first: number): ReadonlyArray<ToolCall> => {
  const parsed = jsonAt(text, field)
  const items: ReadonlyArray<unknown> = Array.isArray(parsed) ? parsed : [parsed]
  if (items.length === 0) throw new FlawedRecord(field, text, "at least one call")
  return items.map((item, index) => {
    const { arguments: given, name } = fieldsAt(item, field)
    return {
      id: `c${first + index}`,
      type: "function",
      function: { name: textAt(name, `${field}.name`), arguments: argumentsText(given, `${field}.arguments`) }
    }
  })
}

/** A JSON text that holds the list, or the list itself. */
const toolsOf = (value: unknown, count: Count) => {
  if (value === undefined || value === null || value === "") return []
  return toolSpecs(typeof value === "string" ? jsonAt(value, "tools") : value, "tools", count)
}
