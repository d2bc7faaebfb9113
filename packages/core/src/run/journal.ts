/**
 * `journal.jsonl`: reading it back, and appending to it.
 */
import { Clock, Effect, Schema, SchemaIssue, type Scope } from "effect"
import { JOURNAL_VERSION, type JournalEntry, JournalEvent } from "./journal-event.ts"
import { openLineFile } from "./line-file.ts"
import { type LinesRead, readLines } from "./read-lines.ts"
import { RunError } from "./run-error.ts"

const decode = Schema.decodeUnknownResult(JournalEvent)
const encode = Schema.encodeUnknownResult(JournalEvent)
const problem = SchemaIssue.makeFormatterDefault()

/** Gives each event to `take`, in order; a torn end is left out and counted. */
export const readJournal = (path: string, take: (event: JournalEvent) => void): Effect.Effect<LinesRead, RunError> =>
  readLines(path, (value, line) => {
    const event = decode(value)
    if (event._tag === "Success") return take(event.success)
    const version = typeof value === "object" && value !== null && "v" in value ? value.v : undefined
    throw new RunError({
      code: version === JOURNAL_VERSION ? "journal_damaged" : "journal_version",
      message: `Line ${line} of ${path} is not an event of version ${JOURNAL_VERSION}: ${problem(event.failure.issue)}`,
      field: `${path}:${line}`,
      value: version === JOURNAL_VERSION ? "unreadable" : `version ${String(version)}`,
      expected: `an event of version ${JOURNAL_VERSION}`,
      advice: "Resume with the version of Ludus that wrote the run, or start a new run under another name."
    })
  })

export interface Journal {
  /** Returns when the event is durable. */
  readonly append: (entry: JournalEntry) => Effect.Effect<void, RunError>
}

/** Opens the journal for appending behind its last whole line. */
export const openJournal = Effect.fn("Journal.open")(function* (
  path: string,
  read: LinesRead
): Effect.fn.Return<Journal, RunError, Scope.Scope> {
  const file = yield* openLineFile(path, read.length)
  return {
    append: Effect.fnUntraced(function* (entry: JournalEntry) {
      const at = yield* Clock.currentTimeMillis
      const event = encode({ v: JOURNAL_VERSION, at, ...entry })
      if (event._tag === "Success") return yield* file.append(JSON.stringify(event.success))
      return yield* new RunError({
        code: "invalid_event",
        message: `A ${entry.kind} event cannot be written: ${problem(event.failure.issue)}`,
        field: entry.kind,
        value: problem(event.failure.issue),
        expected: "an event of the journal's schema, with finite numbers",
        advice: "This is a fault of the caller: nothing was written."
      })
    })
  }
})
