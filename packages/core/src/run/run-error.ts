import { Schema } from "effect"

/** What can go wrong with a run directory. */
export const RunErrorCode = Schema.Literals([
  "invalid_name",
  "invalid_config",
  "invalid_event",
  "locked",
  "config_differs",
  "journal_damaged",
  "journal_version",
  "disk_full",
  "io"
])

/** The run directory cannot be used: it is taken, differs, is damaged, or cannot be written. */
export class RunError extends Schema.TaggedError<RunError>()("RunError", {
  code: RunErrorCode,
  message: Schema.String,
  field: Schema.String,
  value: Schema.String,
  expected: Schema.String,
  advice: Schema.String
}) {}

/** A failed file operation as a {@link RunError}: a full disk is told apart from the rest. */
export const fileError = (path: string, doing: string) => (cause: unknown) => {
  const code = typeof cause === "object" && cause !== null && "code" in cause ? String(cause.code) : "unknown"
  const full = code === "ENOSPC" || code === "EDQUOT"
  return new RunError({
    code: full ? "disk_full" : "io",
    message: `Cannot ${doing} ${path}: ${cause instanceof Error ? cause.message : String(cause)}`,
    field: path,
    value: code,
    expected: full ? "free space" : "a file that can be read and written",
    advice: full
      ? "Free some space and resume the run by its name."
      : "Check that the folder exists and belongs to you."
  })
}
