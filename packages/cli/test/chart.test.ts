import { assert, describe, it } from "@effect/vitest"
import { chart, sparkline, table } from "../src/chart.ts"

describe("sparkline", () => {
  it("has one bar per value, from the smallest to the largest", () => {
    assert.strictEqual(sparkline([0, 0.5, 1]), "▁▅█")
    assert.strictEqual(sparkline([2, 2]), "▁▁")
  })
})

describe("chart", () => {
  it("puts each value on its row, with the scale on the left", () => {
    assert.strictEqual(
      chart([0, 1, 0.5], 3),
      ["   1.00 ┤   ●  ", "   0.50 ┤   │ ●", "   0.00 ┤ ● │ │", "        └──────"].join("\n")
    )
  })
  it("is empty without values", () => {
    assert.strictEqual(chart([]), "")
  })
})

describe("table", () => {
  it("aligns names to the left and figures to the right", () => {
    assert.strictEqual(
      table(
        ["player", "reward"],
        [
          ["random", "0.5"],
          ["x", "-0.25"]
        ]
      ),
      ["player  reward", "random     0.5", "x        -0.25"].join("\n")
    )
  })
})
