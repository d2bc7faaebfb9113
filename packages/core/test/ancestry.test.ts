import { assert, describe, it } from "@effect/vitest"
import { makeAncestry } from "../src/ancestry.ts"

describe("ancestry", () => {
  const ancestry = makeAncestry()
  ancestry.add("a", null, [1, 2], [7])
  ancestry.add("b", "a", [3], [8, 9])
  ancestry.add("c", "a", [4], [5])

  it("gives the ids behind an exchange, over several turns and branches", () => {
    assert.deepStrictEqual(ancestry.suffix("a", [1, 2, 7, 3]), [3])
    assert.deepStrictEqual(ancestry.suffix("b", [1, 2, 7, 3, 8, 9, 6, 6]), [6, 6])
    assert.deepStrictEqual(ancestry.suffix("c", [1, 2, 7, 4, 5]), [])
    assert.strictEqual(ancestry.last(), "c")
  })

  it("knows no extension where one id differs anywhere, one is missing, or the exchange is unknown", () => {
    for (const prompt of [
      [9, 2, 7, 3, 8, 9, 6],
      [1, 2, 6, 3, 8, 9, 6],
      [1, 2, 7, 4, 8, 9, 6],
      [1, 2, 7, 3, 8, 5, 6],
      [1, 2, 7, 3, 8]
    ]) {
      assert.strictEqual(ancestry.suffix("b", prompt), undefined)
    }
    assert.strictEqual(ancestry.suffix("z", [1, 2]), undefined)
  })
})
