import { spawnSync } from "node:child_process"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"

const program = fileURLToPath(new URL("./fixtures/blocks-for-ever.ts", import.meta.url))

describe("REW-03: user code that never gives the event loop back", () => {
  it("is named by the watchdog, which then ends the process", { timeout: 30_000 }, () => {
    const result = spawnSync(process.execPath, ["--conditions=@ludus/source", program], {
      encoding: "utf8",
      timeout: 25_000
    })
    assert.strictEqual(result.signal, "SIGKILL")
    assert.match(result.stderr, /blocked for \d+ s by "score" of environment "stuck" \(episode 0\/train-0\/0\)/u)
    assert.include(result.stderr, "ending the process")
  })
})
