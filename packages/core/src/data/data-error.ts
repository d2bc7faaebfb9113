import { Schema } from "effect"

/** A record of a data file cannot be used: which file, where in it, and what is wrong there. */
export class DataError extends Schema.TaggedError<DataError>()("DataError", {
  path: Schema.String,
  /** `line 4` (counted as editors count, blank lines included) or `item 3` of a JSON array (from 1); `file` for all. */
  place: Schema.String,
  /** Path of the field inside the record: `messages[2].tool_calls[0].function.arguments`. */
  field: Schema.String,
  value: Schema.String,
  expected: Schema.String,
  advice: Schema.String
}) {
  override get message() {
    const field = this.field === "" ? "" : ` ${this.field}`
    return `${this.path}, ${this.place}:${field} is ${this.value}; expected ${this.expected}. ${this.advice}`
  }
}

/** What is wrong in a record, before anyone knows where the record stands. */
export interface Flaw {
  readonly field: string
  readonly value: unknown
  readonly expected: string
}

/** Thrown by the readers of one record; {@link DataError} outside of them. */
export class FlawedRecord extends Error {
  readonly flaw: Flaw
  constructor(field: string, value: unknown, expected: string) {
    super(`${field}: expected ${expected}`)
    this.flaw = { field, value, expected }
  }
}

const LONGEST_VALUE = 120

/** A flaw with its place. */
export const dataError = (path: string, place: string, { expected, field, value }: Flaw): DataError => {
  const shown = value === undefined ? "missing" : typeof value === "string" ? `"${value}"` : JSON.stringify(value)
  return new DataError({
    path,
    place,
    field,
    value: shown.length > LONGEST_VALUE ? `${shown.slice(0, LONGEST_VALUE)}...` : shown,
    expected,
    advice: "Correct it, or leave the record out."
  })
}
