/**
 * `config.json`: what a run was started with. A run goes on with the same settings or not at all, bounds excepted.
 */
import { readFile, rename, writeFile } from "node:fs/promises"
import { join } from "node:path"
import { Effect, Redacted } from "effect"
import { fileError, RunError } from "./run-error.ts"

export type RunConfig = { readonly [name: string]: unknown }

/**
 * Compares with the stored configuration, or stores it. Fields in `bounds` may change (they say how long, not what) and
 * are stored anew. Returns whether there was one.
 */
export const settleConfig = Effect.fn("Run.settleConfig")(function* (
  directory: string,
  config: RunConfig,
  bounds: ReadonlyArray<string>
) {
  const path = join(directory, "config.json")
  const given = yield* toJson(config)
  const stored = yield* Effect.tryPromise({ try: () => readStored(path), catch: fileError(path, "read") })
  if (stored !== undefined) {
    const without = (value: Json) =>
      isObject(value) ? Object.fromEntries(Object.entries(value).filter(([name]) => !bounds.includes(name))) : value
    const found = difference("config", without(stored), without(given))
    if (found !== undefined) return yield* differs(directory, found)
  }
  const text = `${JSON.stringify(given, undefined, 2)}\n`
  yield* Effect.tryPromise({
    try: async () => {
      await writeFile(`${path}.new`, text, { flush: true })
      await rename(`${path}.new`, path)
    },
    catch: fileError(path, "write")
  })
  return stored !== undefined
})

type Json = null | boolean | number | string | ReadonlyArray<Json> | { readonly [name: string]: Json }

const isObject = (value: Json): value is { readonly [name: string]: Json } =>
  typeof value === "object" && value !== null && !Array.isArray(value)

const readStored = (path: string): Promise<Json | undefined> =>
  readFile(path, "utf8").then(
    (text) => JSON.parse(text) as Json,
    (cause: NodeJS.ErrnoException) => (cause.code === "ENOENT" ? undefined : Promise.reject(cause))
  )

/** Names whose values never reach the disk. */
const SECRET =
  /^(authorization|bearer|password|secret|token|api_?key)$|(ApiKey|Token|Secret|Password|_token|_secret|_key)$/iu

/** The configuration as JSON. Secrets become `<redacted>`; a number that JSON cannot hold is refused. */
const toJson = (config: RunConfig): Effect.Effect<Json, RunError> =>
  Effect.try({
    try: () => {
      const clean = (value: unknown, path: string): unknown => {
        if (Redacted.isRedacted(value)) return "<redacted>"
        if (typeof value === "number" && !Number.isFinite(value)) throw notFinite(path, value)
        if (Array.isArray(value)) return value.map((item, index) => clean(item, `${path}[${index}]`))
        if (typeof value !== "object" || value === null) return value
        return Object.fromEntries(
          Object.entries(value).map(([name, item]) => [
            name,
            typeof item === "string" && SECRET.test(name) ? "<redacted>" : clean(item, `${path}.${name}`)
          ])
        )
      }
      return JSON.parse(JSON.stringify(clean(config, "config"))) as Json
    },
    catch: (cause) => (cause instanceof RunError ? cause : notFinite("config", cause))
  })

const notFinite = (field: string, value: unknown): RunError =>
  new RunError({
    code: "invalid_config",
    message: `${field} cannot be stored: ${String(value)}`,
    field,
    value: String(value),
    expected: "plain values and finite numbers",
    advice: "Give a finite number, or leave the field out."
  })

interface Difference {
  readonly field: string
  readonly stored: Json | undefined
  readonly given: Json | undefined
}

const difference = (field: string, stored: Json | undefined, given: Json | undefined): Difference | undefined => {
  if (stored !== undefined && given !== undefined && isObject(stored) && isObject(given)) {
    for (const name of new Set([...Object.keys(stored), ...Object.keys(given)])) {
      const found = difference(`${field}.${name}`, stored[name], given[name])
      if (found !== undefined) return found
    }
    return undefined
  }
  return JSON.stringify(stored) === JSON.stringify(given) ? undefined : { field, stored, given }
}

const differs = (directory: string, { field, given, stored }: Difference): RunError =>
  new RunError({
    code: "config_differs",
    message: `The run in ${directory} was started with another ${field}.`,
    field,
    value: JSON.stringify(given) ?? "nothing",
    expected: JSON.stringify(stored) ?? "nothing",
    advice: "Resume it with the stored settings, or choose another run name to start a new run."
  })
