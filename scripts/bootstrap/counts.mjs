/**
 * How many tests passed and failed, from the reports of the two test runners. A runner that failed without a failed test
 * (it did not start, a file did not load, no test was found) counts as one failure, so that it cannot go unseen.
 */
import { existsSync, readFileSync } from "node:fs"

/** @typedef {{ passed: number, failed: number }} Counts */

/** From vitest's JSON report. @param {string} file @param {number} code exit code of vitest @returns {Counts} */
export const vitestCounts = (file, code) => {
  if (!existsSync(file)) return { passed: 0, failed: 1 }
  const report = JSON.parse(readFileSync(file, "utf8"))
  return atLeastOne({ passed: report.numPassedTests, failed: report.numFailedTests }, code)
}

/** From pytest's JUnit report. @param {string} file @param {number} code exit code of pytest @returns {Counts} */
export const junitCounts = (file, code) => {
  if (!existsSync(file)) return { passed: 0, failed: 1 }
  const head = /<testsuite\b[^>]*>/.exec(readFileSync(file, "utf8"))?.[0] ?? ""
  /** @param {string} name */
  const count = (name) => Number(new RegExp(` ${name}="(\\d+)"`).exec(head)?.[1] ?? 0)
  const failed = count("failures") + count("errors")
  return atLeastOne({ passed: count("tests") - failed - count("skipped"), failed }, code)
}

/** @param {Counts} counts @param {number} code */
const atLeastOne = (counts, code) => (code !== 0 && counts.failed === 0 ? { ...counts, failed: 1 } : counts)

/** @param {readonly Counts[]} all @returns {Counts} */
export const sum = (all) => ({
  passed: all.reduce((total, { passed }) => total + passed, 0),
  failed: all.reduce((total, { failed }) => total + failed, 0)
})
