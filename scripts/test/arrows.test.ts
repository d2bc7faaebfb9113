/**
 * Imports run downward only and never in a circle.
 */
import { assert, describe, it } from "vitest"
import { broken, importsOf, repository } from "../check/arrows.ts"

const names = new Map([
  ["@ludus/core", "packages/core"],
  ["@ludus/env", "packages/env"],
  ["@ludus/backend", "packages/backend"],
  ["@ludus/2048", "environments/2048"],
  ["@ludus/tic-tac-toe", "environments/tic-tac-toe"],
  ["ludus", "packages/cli"]
])

const check = (...sources: ReadonlyArray<readonly [string, ...ReadonlyArray<string>]>) =>
  broken(
    sources.map(([file, ...imports]) => ({ file, imports })),
    names
  )

describe("the arrows between the parts", () => {
  it("are kept in this repository", () => {
    const { sources, names: packages } = repository()
    assert.deepStrictEqual(broken(sources, packages), [])
    assert.isTrue(sources.some(({ file }) => file === "packages/core/src/index.ts"))
  })

  it("allow what points downward", () => {
    const found = check(
      ["packages/env/src/a.ts", "@ludus/core", "effect", "node:fs"],
      ["environments/2048/src/a.ts", "@ludus/env", "@ludus/core"],
      ["packages/cli/src/a.ts", "@ludus/backend", "@ludus/2048"]
    )
    assert.deepStrictEqual(found, [])
  })

  it.each([
    ["packages/core/src/a.ts", "@ludus/env"],
    ["packages/env/src/a.ts", "@ludus/backend"],
    ["packages/backend/src/a.ts", "@ludus/env"],
    ["packages/env/src/a.ts", "ludus"],
    ["environments/2048/src/a.ts", "@ludus/backend"],
    ["environments/2048/src/a.ts", "@ludus/tic-tac-toe"],
    ["packages/core/src/a.ts", "@ludus/env/deep/path"]
  ])("forbid that %s imports %s", (file, specifier) => {
    assert.lengthOf(check([file, specifier]), 1)
  })

  it("forbid a path into another part, also where its name would do", () => {
    assert.lengthOf(check(["packages/env/src/a.ts", "../../core/src/seed.ts"]), 1)
  })

  it("forbid a circle of files", () => {
    const found = check(
      ["packages/core/src/a.ts", "./b.ts"],
      ["packages/core/src/b.ts", "./deep/c.ts"],
      ["packages/core/src/deep/c.ts", "../a.ts"]
    )
    assert.deepStrictEqual(found, [
      "circle: packages/core/src/a.ts -> packages/core/src/b.ts -> packages/core/src/deep/c.ts -> packages/core/src/a.ts"
    ])
  })

  it("read imports, exports and lazy imports, over several lines, and no comments", () => {
    const text = [
      'import { a } from "one"',
      "import type {\n  b,\n  c\n} from 'two'",
      'export * as D from "three"',
      'import "four"',
      'const e = await import("five")',
      '// import { f } from "six"',
      '/** import { g } from "seven" */'
    ].join("\n")
    assert.deepStrictEqual(importsOf(text), ["one", "two", "three", "four", "five"])
  })
})
