/**
 * `npm test`: the quick tests of both languages. The last line is their sum: `N passed, N failed`.
 */
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { ROOT, run } from "./bootstrap/child.mjs"
import { junitCounts, sum, vitestCounts } from "./bootstrap/counts.mjs"
import { Advice, main, say } from "./bootstrap/say.mjs"
import { prepareWorkspace } from "./bootstrap/workspace.mjs"

await main(async () => {
  if (process.argv.length > 2)
    throw new Advice(`npm test takes no options, got "${process.argv[2]}". For one file: npx vitest run <file>.`)
  const { node, python, env } = await prepareWorkspace()
  const results = mkdtempSync(join(tmpdir(), "ludus-test-"))
  try {
    const json = join(results, "vitest.json")
    const xml = join(results, "pytest.xml")
    say("\nTypeScript tests")
    const reporters = ["--reporter=default", "--reporter=json", `--outputFile.json=${json}`]
    const first = await run(node, [`${ROOT}/node_modules/vitest/vitest.mjs`, "run", ...reporters], { env, cwd: ROOT })
    say("\nPython tests")
    const second = await run(
      python,
      ["-m", "pytest", "-q", "-p", "no:cacheprovider", `--junitxml=${xml}`, "backend/tests"],
      {
        env: { ...env, OMP_NUM_THREADS: "1" },
        cwd: ROOT
      }
    )
    const counts = sum([vitestCounts(json, first.code), junitCounts(xml, second.code)])
    console.log(`\n${counts.passed} passed, ${counts.failed} failed`)
    return counts.failed > 0 ? 1 : 0
  } finally {
    rmSync(results, { recursive: true, force: true })
  }
})
