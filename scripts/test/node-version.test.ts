/**
 * Which Node is new enough.
 */
import { assert, describe, it } from "vitest"
import { atLeast, checkNode } from "../bootstrap/node-version.mjs"

describe("Node versions", () => {
  it.each([
    ["20.0.0", "20.0.0", true],
    ["24.21.0", "22.19.0", true],
    ["22.19.0", "22.19.0", true],
    ["22.20.0", "22.19.5", true],
    ["22.18.9", "22.19.0", false],
    ["18.20.8", "20.0.0", false],
    ["9.99.99", "20.0.0", false]
  ])("%s is at least %s: %s", (version, minimum, right) => {
    assert.strictEqual(atLeast(version, minimum), right)
  })

  it("tells what to install where Node is too old", () => {
    assert.throws(() => checkNode("18.20.8"), /needs Node 20 or newer.*18\.20\.8.*Install/)
    assert.doesNotThrow(() => checkNode("20.1.0"))
  })
})
