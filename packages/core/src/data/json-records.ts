/**
 * The records of a JSON-lines file, or of a file that holds one JSON array. A byte-order mark, CRLF, blank lines and a
 * missing final newline are everyday and pass; a line that is not JSON is an error that names it.
 */
import { type DataError, dataError } from "./data-error.ts"

export interface JsonRecord {
  /** `line 4` or `item 3`, see {@link DataError}. */
  readonly place: string
  readonly value: unknown
}

export interface JsonRecords {
  readonly records: ReadonlyArray<JsonRecord>
  readonly errors: ReadonlyArray<DataError>
}

const LINE_FEED = 10

/** Reads all records that can be read; each other line is one error. */
export const parseRecords = (path: string, bytes: Uint8Array): JsonRecords => {
  if (startsArray(bytes)) return parseArray(path, bytes)
  const records: Array<JsonRecord> = []
  const errors: Array<DataError> = []
  let line = 0
  for (let start = 0; start < bytes.length;) {
    const found = bytes.indexOf(LINE_FEED, start)
    const end = found < 0 ? bytes.length : found
    line += 1
    const parsed = parse(bytes.subarray(start, end))
    if (parsed instanceof Error) {
      errors.push(dataError(path, `line ${line}`, { field: "", value: parsed.message, expected: "a JSON object" }))
    } else if (parsed !== undefined) {
      records.push({ place: `line ${line}`, value: parsed.value })
    }
    start = end + 1
  }
  return { records, errors }
}

const parseArray = (path: string, bytes: Uint8Array): JsonRecords => {
  const parsed = parse(bytes)
  if (parsed instanceof Error || parsed === undefined || !Array.isArray(parsed.value)) {
    const value = parsed instanceof Error ? parsed.message : "something else"
    return { records: [], errors: [dataError(path, "file", { field: "", value, expected: "a JSON array" })] }
  }
  const items: ReadonlyArray<unknown> = parsed.value
  return { records: items.map((value, index) => ({ place: `item ${index + 1}`, value })), errors: [] }
}

/** The value, `undefined` for blank text, or what is wrong. */
const parse = (bytes: Uint8Array): { readonly value: unknown } | Error | undefined => {
  try {
    // The decoder drops a byte-order mark, at which JSON.parse would throw.
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes).trim()
    return text === "" ? undefined : { value: JSON.parse(text) }
  } catch (cause) {
    return cause instanceof SyntaxError ? cause : new Error("bytes that are not UTF-8")
  }
}

const BYTE_ORDER_MARK = [0xef, 0xbb, 0xbf]
const BLANK = new Set([9, 10, 13, 32])

const startsArray = (bytes: Uint8Array): boolean => {
  let at = BYTE_ORDER_MARK.every((byte, index) => bytes[index] === byte) ? BYTE_ORDER_MARK.length : 0
  while (BLANK.has(bytes[at] ?? 0)) at += 1
  return bytes[at] === "[".charCodeAt(0)
}
