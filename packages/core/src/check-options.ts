/**
 * Options of a call, checked by a Schema. A name that the Schema does not have is refused, never ignored.
 */
import { Formatter, Schema, SchemaIssue } from "effect"

export interface BadOption {
  /** Path of the option; `options` where there is no object at all. */
  readonly field: string
  readonly value: string
  readonly expected: string
}

const issuesOf = SchemaIssue.makeFormatterStandardSchemaV1()

/** The first option that is wrong, or nothing. */
export const badOption = <F extends Schema.Struct.Fields>(
  schema: Schema.Struct<F> & Schema.ConstraintDecoder<unknown>,
  given: unknown
): BadOption | undefined => {
  const decoded = Schema.decodeUnknownResult(schema)(given, { onExcessProperty: "error" })
  if (decoded._tag === "Success") return undefined
  const issue = issuesOf(decoded.failure.issue).issues[0]
  const path = (issue?.path ?? []).map((part) => String(typeof part === "object" ? part.key : part))
  const value = path.reduce<unknown>(
    (at, name) => (typeof at === "object" && at !== null ? Reflect.get(at, name) : undefined),
    given
  )
  const known = `one of the options ${Object.keys(schema.fields).join(", ")}`
  const told = issue?.message ?? decoded.failure.message
  return {
    field: path.join(".") || "options",
    value: Formatter.format(value),
    expected: told === "Expected no excess property" && path.length === 1 ? known : told.replace(/^Expected /u, "")
  }
}
