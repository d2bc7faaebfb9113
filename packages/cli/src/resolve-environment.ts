/**
 * Finds an environment by what a user typed: the id of one that comes with Ludus, or a module of their own,
 * `./guess.ts` or `./guess.ts#GuessNumber`. A module whose environment asks for services exports them as `layer`.
 */
import { existsSync } from "node:fs"
import { resolve } from "node:path"
import { pathToFileURL } from "node:url"
import { type Environment, isEnvironment } from "@ludus/env"
import { TicTacToe, TicTacToeDigits } from "@ludus/tic-tac-toe"
import { Effect, Layer, Schema } from "effect"

/** An environment with the Layer of the services that it asks for. */
export interface ResolvedEnvironment {
  readonly environment: Environment.Any
  readonly layer: Layer.Layer<never, unknown>
}

const bundled: ReadonlyArray<Environment.Any> = [TicTacToeDigits, TicTacToe]

export class UnknownEnvironment extends Schema.TaggedError<UnknownEnvironment>()("UnknownEnvironment", {
  value: Schema.String,
  expected: Schema.String,
  advice: Schema.String
}) {
  override get message() {
    return `Environment ${JSON.stringify(this.value)}: expected ${this.expected}. ${this.advice}`
  }
}

/** Ids and one-line descriptions of the environments that come with Ludus. */
export const bundledEnvironments = bundled.map(({ id, spec }) => ({ id, description: spec.description ?? "" }))

export const resolveEnvironment = Effect.fn("Cli.resolveEnvironment")(function* (name: string) {
  const known = bundled.find(({ id }) => id === name)
  if (known !== undefined) return { environment: known, layer: Layer.empty } satisfies ResolvedEnvironment
  const [path = name, wanted] = name.split("#")
  const file = resolve(path)
  if (!existsSync(file)) {
    return yield* new UnknownEnvironment({
      value: name,
      expected: `${bundled.map(({ id }) => id).join(", ")}, or the path of a module`,
      advice: "Write a module as ./my-environment.ts, or ./my-environment.ts#Name where it exports several."
    })
  }
  const exports = yield* Effect.tryPromise({
    try: () => import(pathToFileURL(file).href) as Promise<Readonly<Record<string, unknown>>>,
    catch: (cause) =>
      new UnknownEnvironment({
        value: name,
        expected: "a module that can be imported",
        advice: cause instanceof Error ? `${cause.name}: ${cause.message}` : String(cause)
      })
  })
  const found = Object.entries(exports).filter(([, value]) => isEnvironment(value))
  const chosen = wanted === undefined && found.length === 1 ? found[0] : found.find(([key]) => key === wanted)
  if (chosen === undefined || !isEnvironment(chosen[1])) {
    return yield* new UnknownEnvironment({
      value: name,
      expected:
        found.length === 0
          ? "a module that exports an environment class"
          : `one of its exports: ${found.map(([key]) => key).join(", ")}`,
      advice:
        found.length === 0
          ? "Export a class that extends Environment.Class(...)(...)."
          : `Write ${path}#${found[0]?.[0] ?? "Name"}.`
    })
  }
  const layer = exports["layer"]
  return {
    environment: chosen[1],
    layer: Layer.isLayer(layer) ? (layer as never) : Layer.empty
  } satisfies ResolvedEnvironment
})
