/** Reading fields of an unknown record; whatever is not as expected throws a {@link FlawedRecord} naming its path. */
import { FlawedRecord } from "./data-error.ts"

export type Fields = Readonly<Record<string, unknown>>

export const isFields = (value: unknown): value is Fields =>
  typeof value === "object" && value !== null && !Array.isArray(value)

export const fieldsAt = (value: unknown, field: string): Fields => {
  if (isFields(value)) return value
  throw new FlawedRecord(field, value, "an object")
}

export const listAt = (value: unknown, field: string): ReadonlyArray<unknown> => {
  if (Array.isArray(value)) return value
  throw new FlawedRecord(field, value, "a list")
}

export const textAt = (value: unknown, field: string): string => {
  if (typeof value === "string") return value
  throw new FlawedRecord(field, value, "a text")
}

/** Parses JSON that stands in a text. */
export const jsonAt = (text: string, field: string): unknown => {
  try {
    return JSON.parse(text)
  } catch {
    throw new FlawedRecord(field, text, "JSON text")
  }
}

/** Counts of what was seen in a file: keys that were left out, odd turns that were taken as they are. */
export type Count = (what: string) => void
