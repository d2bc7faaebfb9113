import { assert, describe, it } from "@effect/vitest"
import { InvalidOption, resolveOptions, scenarioIndices, type TrainingOptions } from "../src/training-options.ts"

const environment = { id: "game", seats: ["x", "o"] }
const resolve = (options: unknown) => resolveOptions(environment, options as TrainingOptions)
const refused = (options: unknown) => {
  const resolved = resolve(options)
  assert.instanceOf(resolved, InvalidOption)
  return resolved
}
const accepted = (options: unknown) => {
  const resolved = resolve(options)
  if (resolved instanceof InvalidOption) throw resolved
  return resolved
}

describe("options of trainEnvironment", () => {
  it("have the documented defaults, with the small model's profile for the bundled model", () => {
    const options = accepted({})
    assert.strictEqual(options.name, "game")
    assert.strictEqual(options.groupSize, 8)
    assert.strictEqual(options.scenariosPerIteration, 6)
    assert.deepStrictEqual(options.train, {
      learningRate: 6e-4,
      weightDecay: 0,
      gradClip: 0.5,
      entropyBonus: 0.03,
      denominator: "batch"
    })
    const large = accepted({ base: { source: "hub", id: "Qwen/Qwen2.5-3B-Instruct" } })
    assert.strictEqual(large.scenariosPerIteration, 8)
    assert.deepStrictEqual(large.train, {})
  })

  it("refuse an unknown name, by name", () => {
    const problem = refused({ learningrate: 1e-3 })
    assert.strictEqual(problem.field, "learningrate")
    assert.include(problem.advice, "groupSize")
    assert.strictEqual(refused({ train: { lr: 1 } }).field, "train.lr")
  })

  it("refuse values out of range, with the field, the value and what was expected", () => {
    assert.deepInclude(refused({ groupSize: 1 }), { field: "groupSize", value: "1" })
    assert.strictEqual(refused({ iterations: -1 }).field, "iterations")
    assert.strictEqual(refused({ temperature: 0 }).field, "temperature")
    assert.strictEqual(refused({ train: { learningRate: Number.NaN } }).field, "train.learningRate")
    assert.strictEqual(refused({ name: "../escape" }).field, "name")
    assert.strictEqual(refused({ seats: ["z"] }).field, "seats")
    assert.strictEqual(refused({ lora: { rank: 0 } }).field, "lora.rank")
  })
})

describe("the scenario cursor", () => {
  it("goes through the list in order, round after round", () => {
    const options = accepted({ scenariosPerIteration: 3 })
    assert.deepStrictEqual(scenarioIndices(options, 4, 0), [0, 1, 2])
    assert.deepStrictEqual(scenarioIndices(options, 4, 1), [3, 4, 5])
  })

  it("shuffled: each round has every entry once, in its own order, the same for the same seed", () => {
    const options = accepted({ scenariosPerIteration: 50, order: "shuffled", seed: 3 })
    const [first = [], second = []] = [0, 1].map((iteration) => scenarioIndices(options, 50, iteration))
    const inRound = (indices: ReadonlyArray<number>) => indices.map((index) => index % 50)
    assert.deepStrictEqual(
      inRound(first).toSorted((a, b) => a - b),
      Array.from({ length: 50 }, (_, index) => index)
    )
    assert.notDeepEqual(inRound(first), inRound(second))
    assert.deepStrictEqual(scenarioIndices(options, 50, 1), second)
  })
})
