/**
 * Reading a file of JSON lines whose last write may have been cut by a crash.
 */
import { createReadStream } from "node:fs"
import { stat } from "node:fs/promises"
import { Effect } from "effect"
import { fileError, RunError } from "./run-error.ts"

export interface LinesRead {
  /** Length in bytes of the whole lines: appending goes on there. */
  readonly length: number
  /** Bytes behind it that a crash left half-written; 0 as a rule. */
  readonly torn: number
}

/**
 * Gives each parsed line to `take`. An unreadable end is the work of a crash in the middle of a write: it is left out
 * and counted. An unreadable line before a readable one is damage and fails with `journal_damaged`, naming the line.
 */
export const readLines = (
  path: string,
  take: (value: unknown, line: number) => void
): Effect.Effect<LinesRead, RunError> =>
  Effect.tryPromise({
    try: async (signal) => {
      const size = await stat(path).then(
        (found) => found.size,
        (cause: NodeJS.ErrnoException) => (cause.code === "ENOENT" ? 0 : Promise.reject(cause))
      )
      const read = { line: 0, length: 0, bad: 0 }
      if (size > 0) {
        let rest = Buffer.alloc(0)
        for await (const chunk of createReadStream(path, { signal, highWaterMark: 1 << 20 })) {
          rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk])
          for (let end = rest.indexOf(10); end >= 0; end = rest.indexOf(10)) {
            takeLine(path, rest.subarray(0, end), read, take)
            rest = rest.subarray(end + 1)
          }
        }
      }
      return { length: read.length, torn: size - read.length }
    },
    catch: (cause) => (cause instanceof RunError ? cause : fileError(path, "read")(cause))
  })

const takeLine = (
  path: string,
  bytes: Buffer,
  read: { line: number; length: number; bad: number },
  take: (value: unknown, line: number) => void
): void => {
  read.line += 1
  const value = parse(bytes)
  if (value === undefined) {
    if (read.bad === 0) read.bad = read.line
    return
  }
  if (read.bad > 0) {
    throw new RunError({
      code: "journal_damaged",
      message: `Line ${read.bad} of ${path} is not JSON, but later lines are: the file was changed or damaged.`,
      field: `${path}:${read.bad}`,
      value: "not JSON",
      expected: "one JSON object a line",
      advice: "Restore the file, or start a new run under another name."
    })
  }
  take(value, read.line)
  read.length += bytes.length + 1
}

const parse = (bytes: Buffer): unknown => {
  try {
    return JSON.parse(bytes.toString("utf8"))
  } catch {
    return undefined
  }
}
