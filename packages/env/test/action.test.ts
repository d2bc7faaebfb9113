import { Action } from "@ludus/env"
import { assert, describe, it } from "@effect/vitest"
import { Result, Schema } from "effect"

const value = <A>(action: Action.Action<A>, reply: string) =>
  Result.getOrElse(action.decode(reply), (problem) => problem)
const problem = <A>(action: Action.Action<A>, reply: string) => {
  const decoded = action.decode(reply)
  return Result.isFailure(decoded) ? decoded.failure.message : "decoded"
}

describe("Action.tag", () => {
  const move = Action.tag("move", Schema.Literals(["left", "right"]))
  it("decodes the element's text, wherever it stands", () => {
    assert.strictEqual(value(move, "I go <move> left </move>."), "left")
  })
  it("decodes numbers through the Schema", () => {
    assert.strictEqual(value(Action.tag("guess", Schema.NumberFromString), "<guess>42</guess>"), 42)
  })
  it("says what is missing, doubled or wrong", () => {
    assert.include(problem(move, "left"), "No <move>")
    assert.include(problem(Action.tag("guess", Schema.FiniteFromString), "<guess> </guess>"), "<guess> is empty")
    assert.include(problem(move, "<move>left</move><move>right</move>"), "2 different <move> elements")
    assert.include(problem(move, "<move>up</move>"), 'Expected "left" | "right"')
  })
  it("takes the same element said twice as one", () => {
    assert.strictEqual(value(move, "<move>left</move> so <move>left</move>"), "left")
  })
  it("does not read the thinking, closed or cut", () => {
    assert.strictEqual(value(move, "<think><move>right</move></think><move>left</move>"), "left")
    assert.include(problem(move, "<think><move>right</move>"), "No <move>")
  })
  it("refuses a name that is no element name, at once", () => {
    assert.throws(() => Action.tag("a b", Schema.String), /no element name/u)
  })
})

describe("Action.pattern", () => {
  const digit = Action.pattern(/^\s*([1-9])(?!\d)/u, Schema.NumberFromString)
  it("decodes the first group", () => {
    assert.strictEqual(value(digit, " 7 it is"), 7)
  })
  it("reads the same reply twice alike, also with a global expression", () => {
    const global = Action.pattern(/\d/gu, Schema.NumberFromString)
    assert.strictEqual(value(global, "5"), 5)
    assert.strictEqual(value(global, "5"), 5)
  })
  it("LOOP-03: in a cut reply, a match at its very end may lack its end, unless its length is fixed", () => {
    const answer = Action.pattern(/answer is (\d+)/u, Schema.FiniteFromString)
    assert.isFalse(answer.isWhole("The answer is 4"))
    assert.isTrue(answer.isWhole("The answer is 42, beca"))
    assert.isTrue(Action.pattern(/^(\d)$/u, Schema.FiniteFromString, { fixedLength: true }).isWhole("4"))
  })
  it("refuses what does not match", () => {
    assert.include(problem(digit, "12"), "does not match")
  })
})

describe("Action.json", () => {
  const cell = Action.json(Schema.Struct({ row: Schema.Int, column: Schema.Int }))
  it("decodes a bare or fenced value", () => {
    assert.deepStrictEqual(value(cell, '{"row":1,"column":2}'), { row: 1, column: 2 })
    assert.deepStrictEqual(value(cell, 'So:\n```json\n{"row":1,"column":2}\n```\n'), { row: 1, column: 2 })
  })
  it("names the path of a mistake", () => {
    assert.include(problem(cell, '{"row":1,"column":"x"}'), '["column"]')
    assert.include(problem(cell, "row 1"), "not the expected JSON")
  })
})

describe("Action.text", () => {
  it("is the whole reply, trimmed, and open: a cut reply may lack its end", () => {
    assert.strictEqual(value(Action.text(), " hello \n"), "hello")
    assert.isFalse(Action.text().isWhole("hello"))
  })
})
