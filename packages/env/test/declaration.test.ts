import { Reward } from "@ludus/core"
import { Action, checkDeclaration, Environment, Scenario } from "@ludus/env"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Schema } from "effect"
import { GuessNumber } from "./fixtures/guess-number.ts"

const spec = {
  scenario: Schema.Struct({ n: Schema.Finite }),
  state: Schema.Struct({ n: Schema.Finite }),
  action: Action.text(),
  rewards: { good: Reward.between(0, 1) },
  limits: { turns: 1 }
}
const behaviour = {
  scenarios: Scenario.list([{ n: 1 }, { n: 2 }]),
  start: ({ n }: { readonly n: number }) => ({ n }),
  observe: () => "",
  act: (state: { readonly n: number }) => state,
  done: () => true,
  score: () => ({ good: 1 })
}

const problemOf = <E extends Environment.Any>(environment: E) => Effect.flip(checkDeclaration(environment, { seed: 0 }))

describe("checkDeclaration", () => {
  it.effect("passes a sound environment", () => checkDeclaration(GuessNumber, { seed: 0 }))

  it.effect("names a scenario that does not survive its Schema", () =>
    Effect.gen(function* () {
      class Rounded extends Environment.Class("rounded", {
        ...spec,
        scenario: Schema.Struct({ n: Schema.NumberFromString.check(Schema.isInt()) })
      })({ ...behaviour, scenarios: Scenario.list([{ n: 1.5 }, { n: 2 }]) }) {}
      const problem = yield* problemOf(Rounded)
      assert.strictEqual(problem.field, "scenario train-0")
      assert.strictEqual(problem.value, '{"n":1.5}')
    })
  )

  it.effect("names a state that loses something on the way to the journal and back", () =>
    Effect.gen(function* () {
      class Hidden extends Environment.Class(
        "hidden",
        spec
      )({
        ...behaviour,
        start: ({ n }) => ({ n, secret: "not in the Schema" })
      }) {}
      const problem = yield* problemOf(Hidden)
      assert.strictEqual(problem.field, "state at the start of train-0")
      assert.include(problem.expected, 'not {"n":1}')
    })
  )

  it.effect("names a start that throws, before anything expensive starts", () =>
    Effect.gen(function* () {
      class Broken extends Environment.Class(
        "broken",
        spec
      )({
        ...behaviour,
        start: () => {
          throw new RangeError("no board")
        }
      }) {}
      const problem = yield* problemOf(Broken)
      assert.strictEqual(problem.field, "start of train-0")
      assert.include(problem.message, "RangeError: no board")
    })
  )

  for (const [name, value] of [
    ["turns", 0],
    ["turns", 1.5],
    ["tokensPerTurn", -1],
    ["seconds", 0],
    ["invalidReplies", Number.NaN]
  ] as const) {
    it.effect(`refuses limits.${name} = ${value}`, () =>
      Effect.gen(function* () {
        class Limited extends Environment.Class("limited", { ...spec, limits: { turns: 1, [name]: value } })(
          behaviour
        ) {}
        assert.strictEqual((yield* problemOf(Limited)).field, `limits.${name}`)
      })
    )
  }

  it.effect("refuses an empty training split", () =>
    Effect.gen(function* () {
      class Empty extends Environment.Class(
        "empty",
        spec
      )({ ...behaviour, scenarios: Scenario.list([], [{ n: 1 }]) }) {}
      assert.strictEqual((yield* problemOf(Empty)).field, "scenarios")
    })
  )
})

describe("Scenario", () => {
  it("generate: the splits share no seed, and the held-out one is the same for every run", () => {
    const scenarios = Scenario.generate((random) => random.integer(0, 1e9))
    const seeds = (split: Scenario.Split, seed: number) =>
      Array.from({ length: 500 }, (_, index) => scenarios.at(split, index, seed).seed)
    const all = [...seeds("train", 1), ...seeds("held-out", 1)]
    assert.strictEqual(new Set(all).size, 1000)
    assert.deepStrictEqual(seeds("held-out", 1), seeds("held-out", 2))
    assert.notDeepEqual(seeds("train", 1), seeds("train", 2))
  })

  it("list: the last fifth is held out, and no entry is in both splits", () => {
    const scenarios = Scenario.list(["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"])
    assert.strictEqual(scenarios.size("train"), 8)
    assert.deepStrictEqual(
      [0, 1].map((index) => scenarios.at("held-out", index, 0).input),
      ["i", "j"]
    )
    // the second round has the same inputs under other ids and seeds
    assert.strictEqual(scenarios.at("train", 8, 0).input, "a")
    assert.notStrictEqual(scenarios.at("train", 8, 0).seed, scenarios.at("train", 0, 0).seed)
  })
})
