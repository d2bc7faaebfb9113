/**
 * When the packages count as installed.
 */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { afterEach, assert, beforeEach, describe, it } from "vitest"
import { isInstalled } from "../bootstrap/install.mjs"

let root = ""
beforeEach(() => void (root = mkdtempSync(join(tmpdir(), "ludus-install-"))))
afterEach(() => rmSync(root, { recursive: true, force: true }))

const lock = {
  "": { name: "workspace", version: "1.0.0" },
  "packages/one": { version: "0.1.0" },
  "node_modules/one": { resolved: "packages/one", link: true },
  "node_modules/effect": { version: "4.1.0" },
  "node_modules/effect/node_modules/inner": { version: "1.0.0" },
  "node_modules/for-another-platform": { version: "2.0.0", optional: true }
}
const { "": _root, "node_modules/for-another-platform": _other, ...installed } = lock

const write = (inventory: object | undefined) => {
  writeFileSync(join(root, "package-lock.json"), JSON.stringify({ packages: lock }))
  mkdirSync(join(root, "node_modules"))
  if (inventory !== undefined) {
    writeFileSync(join(root, "node_modules", ".package-lock.json"), JSON.stringify({ packages: inventory }))
  }
}

describe("packages are installed", () => {
  it("when npm's inventory has every package of the lock file; those of other platforms may be missing", () => {
    write(installed)
    assert.isTrue(isInstalled(root))
  })

  it("not without an inventory: an installation was cut off, or there was none", () => {
    write(undefined)
    assert.isFalse(isInstalled(root))
  })

  it("not when one has another version", () => {
    write({ ...installed, "node_modules/effect": { version: "4.0.9" } })
    assert.isFalse(isInstalled(root))
  })

  it("not when a nested one is missing", () => {
    const { "node_modules/effect/node_modules/inner": _, ...rest } = installed
    write(rest)
    assert.isFalse(isInstalled(root))
  })
})
