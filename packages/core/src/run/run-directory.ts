/**
 * The run directory, `<directory>/<name>`: everything about one training that the client knows.
 *
 * | file | holds |
 * |---|---|
 * | `config.json` | what the run was started with, without secrets |
 * | `journal.jsonl` | what happened, with the trajectories ({@link JournalEvent}) |
 * | `metrics.jsonl` | one row per finished iteration |
 * | `checkpoints.jsonl` | where the backend keeps each step |
 * | `backend/` | state of an embedded backend |
 * | `lock` | who writes now |
 */
import { mkdir } from "node:fs/promises"
import { join, resolve } from "node:path"
import { Clock, Effect, Schema, type Scope } from "effect"
import { ModelName } from "../backend/protocol.ts"
import { openJournal, readJournal } from "./journal.ts"
import type { JournalEntry } from "./journal-event.ts"
import { openLineFile } from "./line-file.ts"
import { type MetricsRow, readMetrics, toMetricsRow } from "./metrics.ts"
import { readLines } from "./read-lines.ts"
import { makeResume, type Resume } from "./resume.ts"
import { type RunConfig, settleConfig } from "./run-config.ts"
import { fileError, RunError } from "./run-error.ts"
import { lockRun } from "./run-lock.ts"

export interface RunOptions {
  /** Folder that holds runs. Default `.ludus/runs`. */
  readonly directory?: string
  /** Letters, digits, `.`, `_` and `-`; it becomes a folder. */
  readonly name: string
  readonly config: RunConfig
  /** Top-level fields of `config` that may differ on resuming. Default `["iterations"]`. */
  readonly bounds?: ReadonlyArray<string>
}

export interface Run {
  readonly name: string
  /** Absolute path of the run directory. */
  readonly directory: string
  /** State root of an embedded backend. */
  readonly backendState: string
  /** What was there already. */
  readonly resume: Resume
  /** Appends to the journal; returns when the event is durable. */
  readonly append: (entry: JournalEntry) => Effect.Effect<void, RunError>
  /** Appends the row that ends an iteration; figures that are not finite are left out and named. */
  readonly finishIteration: (row: Parameters<typeof toMetricsRow>[0]) => Effect.Effect<MetricsRow, RunError>
  /** Notes where the backend keeps a step. */
  readonly noteCheckpoint: (checkpoint: {
    readonly step: number
    readonly policy: string
    readonly path: string
  }) => Effect.Effect<void, RunError>
}

const canBeFolder: (name: string) => boolean = Schema.is(ModelName)

/** Makes the run directory or opens it again, and holds it until the scope closes. */
export const openRun = Effect.fn("Run.open")(function* (
  options: RunOptions
): Effect.fn.Return<Run, RunError, Scope.Scope> {
  if (!canBeFolder(options.name)) {
    return yield* new RunError({
      code: "invalid_name",
      message: `"${options.name}" cannot name a run.`,
      field: "name",
      value: options.name,
      expected: "letters, digits, '.', '_' and '-', at most 128, starting with a letter or digit",
      advice: "Choose a name like tic-tac-toe-1."
    })
  }
  const directory = resolve(options.directory ?? join(".ludus", "runs"), options.name)
  yield* Effect.tryPromise({ try: () => mkdir(directory, { recursive: true }), catch: fileError(directory, "make") })
  yield* lockRun(directory)
  const known = yield* settleConfig(directory, options.config, options.bounds ?? ["iterations"])

  const rows: Array<MetricsRow> = []
  const metricsPath = join(directory, "metrics.jsonl")
  const metricsRead = yield* readMetrics(metricsPath, (row) => rows.push(row))
  const journalPath = join(directory, "journal.jsonl")
  const resume = makeResume(known, rows)
  const journalRead = yield* readJournal(journalPath, resume.take)
  const checkpointsPath = join(directory, "checkpoints.jsonl")
  const checkpointsRead = yield* readLines(checkpointsPath, () => undefined)

  const journal = yield* openJournal(journalPath, journalRead)
  const metrics = yield* openLineFile(metricsPath, metricsRead.length)
  const checkpoints = yield* openLineFile(checkpointsPath, checkpointsRead.length)
  return {
    name: options.name,
    directory,
    backendState: join(directory, "backend"),
    resume: resume.finish([
      ["journal.jsonl", journalRead],
      ["metrics.jsonl", metricsRead],
      ["checkpoints.jsonl", checkpointsRead]
    ]),
    append: journal.append,
    finishIteration: (given) => {
      const row = toMetricsRow(given)
      return Effect.as(metrics.append(JSON.stringify(row)), row)
    },
    noteCheckpoint: (checkpoint) =>
      Effect.flatMap(Clock.currentTimeMillis, (at) => checkpoints.append(JSON.stringify({ at, ...checkpoint })))
  }
})
