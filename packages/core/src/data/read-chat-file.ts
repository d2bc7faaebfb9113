/** Chat files for supervised fine-tuning: OpenAI's form or ShareGPT's, as JSON lines or as one JSON array. */
import { readFile } from "node:fs/promises"
import { Effect } from "effect"
import type { SftExample } from "../backend/protocol.ts"
import { type DataError, dataError, FlawedRecord } from "./data-error.ts"
import { parseRecords } from "./json-records.ts"
import { fromOpenAI } from "./openai-chat.ts"
import { type Count, fieldsAt } from "./record-fields.ts"
import { fromShareGpt, type ShareGptTags } from "./sharegpt.ts"

export interface ReadChatOptions {
  /** Default: each record by its `messages` or `conversations`. */
  readonly form?: "openai" | "sharegpt"
  /** Other names that a ShareGPT file uses. */
  readonly tags?: ShareGptTags
  /** `stop` (default) fails at the first record that cannot be used; `collect` reads on and lists them all. */
  readonly onError?: "stop" | "collect"
}

export interface ChatFile {
  readonly examples: ReadonlyArray<SftExample>
  /** Always empty with `onError: "stop"`. */
  readonly errors: ReadonlyArray<DataError>
  /** What was left out or taken although it is odd, counted: `ignored: metadata`, `odd: two user turns in a row`. */
  readonly notes: Readonly<Record<string, number>>
}

/** Reads a whole file; examples are in its order, ready for `model.sft(examples)`. */
export const readChatFile = Effect.fn("readChatFile")(function* (
  path: string,
  options: ReadChatOptions = {}
): Effect.fn.Return<ChatFile, DataError> {
  const bytes = yield* Effect.tryPromise({
    try: (signal) => readFile(path, { signal }),
    catch: (cause) =>
      dataError(path, "file", {
        field: "",
        value: cause instanceof Error ? cause.message : String(cause),
        expected: "a file that can be read"
      })
  })
  const file = readChatBytes(path, bytes, options)
  const first = file.errors[0]
  if (first !== undefined && options.onError !== "collect") return yield* first
  return file
})

/** The same for bytes that are there already; `path` is only for messages. */
export const readChatBytes = (path: string, bytes: Uint8Array, options: ReadChatOptions = {}): ChatFile => {
  const { errors: unreadable, records } = parseRecords(path, bytes)
  const errors = [...unreadable]
  const examples: Array<SftExample> = []
  const notes: Record<string, number> = {}
  const count: Count = (what) => {
    notes[what] = (notes[what] ?? 0) + 1
  }
  for (const { place, value } of records) {
    try {
      examples.push(toExample(value, options, count))
    } catch (cause) {
      if (!(cause instanceof FlawedRecord)) throw cause
      errors.push(dataError(path, place, cause.flaw))
    }
  }
  return { examples, errors: errors.toSorted(byPlace), notes }
}

const toExample = (value: unknown, options: ReadChatOptions, count: Count): SftExample => {
  const fields = fieldsAt(value, "")
  const form = options.form ?? (fields["messages"] ? "openai" : fields["conversations"] ? "sharegpt" : undefined)
  if (form === undefined) throw new FlawedRecord("", value, "an object with messages or conversations")
  return form === "openai" ? fromOpenAI(fields, count) : fromShareGpt(fields, count, options.tags)
}

const number = ({ place }: DataError) => Number(place.split(" ")[1] ?? 0)
const byPlace = (a: DataError, b: DataError) => number(a) - number(b)
