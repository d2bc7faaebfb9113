import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Layer } from "effect"
import { resolveEnvironment } from "../src/resolve-environment.ts"

const fixture = (name: string) => fileURLToPath(new URL(`./fixtures/${name}`, import.meta.url))
const problem = (name: string) => Effect.map(Effect.flip(resolveEnvironment(name)), (error) => error.message)

describe("resolveEnvironment", () => {
  it.effect("knows those that come with Ludus", () =>
    Effect.gen(function* () {
      assert.strictEqual((yield* resolveEnvironment("tic-tac-toe")).environment.id, "tic-tac-toe")
    })
  )
  it.effect("takes the only environment of a module, with its layer", () =>
    Effect.gen(function* () {
      const found = yield* resolveEnvironment(fixture("one-environment.ts"))
      assert.strictEqual(found.environment.id, "tic-tac-toe")
      assert.notStrictEqual(found.layer, Layer.empty)
    })
  )
  it.effect("takes the named one of several", () =>
    Effect.gen(function* () {
      const found = yield* resolveEnvironment(`${fixture("two-environments.ts")}#TicTacToeDigits`)
      assert.strictEqual(found.environment.id, "tic-tac-toe-digits")
      assert.include(yield* problem(fixture("two-environments.ts")), "TicTacToe, TicTacToeDigits")
    })
  )
  it.effect("says what it expected", () =>
    Effect.gen(function* () {
      assert.include(yield* problem("chess"), "expected tic-tac-toe-digits, tic-tac-toe, or the path of a module")
      assert.include(yield* problem(fixture("no-environment.ts")), "a module that exports an environment class")
    })
  )
})
