/**
 * Sums of test reports, from texts that the runners wrote.
 */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { afterAll, assert, describe, it } from "vitest"
import { junitCounts, sum, vitestCounts } from "../bootstrap/counts.mjs"

const folder = mkdtempSync(join(tmpdir(), "ludus-counts-"))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const file = (name: string, text: string) => {
  writeFileSync(join(folder, name), text)
  return join(folder, name)
}

const junit = (attributes: string) =>
  file(
    "pytest.xml",
    `<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests"><testsuite name="pytest" ${attributes}><testcase/></testsuite></testsuites>`
  )

describe("counting tests", () => {
  it("reads pytest's report; errors are failures, skipped tests are neither", () => {
    const report = junit('errors="1" failures="2" skipped="3" tests="20" time="1.5"')
    assert.deepStrictEqual(junitCounts(report, 1), { passed: 14, failed: 3 })
  })

  it("reads vitest's report", () => {
    const report = file("vitest.json", '{"numTotalTests":7,"numPassedTests":5,"numFailedTests":2,"numPendingTests":0}')
    assert.deepStrictEqual(vitestCounts(report, 1), { passed: 5, failed: 2 })
  })

  it("counts a runner that failed without a failed test as one failure", () => {
    assert.deepStrictEqual(junitCounts(junit('errors="0" failures="0" skipped="0" tests="0"'), 5), {
      passed: 0,
      failed: 1
    })
    assert.deepStrictEqual(vitestCounts(join(folder, "none"), 1), { passed: 0, failed: 1 })
    assert.deepStrictEqual(vitestCounts(join(folder, "none"), 0), { passed: 0, failed: 1 })
  })

  it("adds up", () => {
    assert.deepStrictEqual(
      sum([
        { passed: 1, failed: 2 },
        { passed: 3, failed: 4 }
      ]),
      { passed: 4, failed: 6 }
    )
  })
})
