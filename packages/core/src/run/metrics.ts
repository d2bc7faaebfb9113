/**
 * `metrics.jsonl`: one row an iteration. A row is the last thing that an iteration writes, so it also says that the
 * iteration is finished.
 */
import { type Effect, Schema } from "effect"
import { type LinesRead, readLines } from "./read-lines.ts"
import { RunError } from "./run-error.ts"

export const MetricsRow = Schema.StructWithRest(
  Schema.Struct({
    iteration: Schema.Natural,
    /** Newest step after the iteration. */
    step: Schema.Natural,
    /** Whether this iteration made that step. */
    trained: Schema.Boolean,
    /** Names of figures that were not finite and are left out. */
    nonFinite: Schema.optionalKey(Schema.Array(Schema.String))
  }),
  [Schema.Record(Schema.String, Schema.Union([Schema.Finite, Schema.Boolean, Schema.Array(Schema.String)]))]
)
export type MetricsRow = typeof MetricsRow.Type

/** A row from figures: those that are NaN or infinite (JSON has no such numbers) are left out and named. */
export const toMetricsRow = (row: {
  readonly iteration: number
  readonly step: number
  readonly trained: boolean
  readonly figures: Readonly<Record<string, number>>
}): MetricsRow => {
  const entries = Object.entries(row.figures)
  const nonFinite = entries.filter(([, value]) => !Number.isFinite(value)).map(([name]) => name)
  return {
    ...Object.fromEntries(entries.filter(([, value]) => Number.isFinite(value))),
    iteration: row.iteration,
    step: row.step,
    trained: row.trained,
    ...(nonFinite.length > 0 ? { nonFinite } : {})
  }
}

const decode = Schema.decodeUnknownResult(MetricsRow)

/** Gives each row to `take`, in order; a torn end is left out and counted. */
export const readMetrics = (path: string, take: (row: MetricsRow) => void): Effect.Effect<LinesRead, RunError> =>
  readLines(path, (value, line) => {
    const row = decode(value)
    if (row._tag === "Success") return take(row.success)
    throw new RunError({
      code: "journal_damaged",
      message: `Line ${line} of ${path} is not a row of metrics.`,
      field: `${path}:${line}`,
      value: JSON.stringify(value).slice(0, 200),
      expected: "iteration, step, trained, and finite figures",
      advice: "Restore the file, or start a new run under another name."
    })
  })
