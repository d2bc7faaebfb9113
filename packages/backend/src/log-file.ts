/**
 * The output of a child in a file, and its last lines for an error message.
 *
 * A file and not a pipe: the child can always write, nothing of what it said before its end is lost, and the whole text
 * stays where the user can read it.
 */
import { closeSync, fstatSync, mkdirSync, openSync, readSync } from "node:fs"
import { dirname } from "node:path"
import { Effect, Schema, type Scope } from "effect"

/** The file could not be opened; the message is the file system's own. */
export class LogNotWritable extends Schema.TaggedError<LogNotWritable>()("LogNotWritable", {
  message: Schema.String
}) {}

export interface LogFile {
  readonly path: string
  readonly descriptor: number
  /** The last lines (at most 30 lines and 8 KB) that were written since the file was opened here. */
  readonly tail: () => string
}

/** Opens the file for appending, with its folder; closed with the scope. */
export const openLog = (path: string): Effect.Effect<LogFile, LogNotWritable, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.try({
      try: () => {
        mkdirSync(dirname(path), { recursive: true })
        const descriptor = openSync(path, "a+", 0o600)
        const begin = fstatSync(descriptor).size
        return { path, descriptor, tail: () => tail(descriptor, begin) }
      },
      catch: (error) => new LogNotWritable({ message: String(error) })
    }),
    (log) => Effect.sync(() => closeSync(log.descriptor))
  )

const tail = (descriptor: number, begin: number): string => {
  const end = fstatSync(descriptor).size
  const from = Math.max(begin, end - 8192)
  const bytes = Buffer.alloc(end - from)
  readSync(descriptor, bytes, 0, bytes.length, from)
  return bytes.toString("utf8").trimEnd().split("\n").slice(-30).join("\n")
}
