/**
 * `npm run check`: lint, format, types, unused code, the arrows between the parts, and the Python side. All of them run, also
 * after one has failed. The last line is `N passed, N failed`.
 */
import { checks } from "./check/checks.mjs"
import { capture } from "./check/capture.mjs"
import { Advice, main, since } from "./bootstrap/say.mjs"
import { prepareWorkspace } from "./bootstrap/workspace.mjs"

/** The first 80 lines, indented. @param {string} output */
const excerpt = (output) => {
  const lines = output.trim().split("\n")
  const shown = lines.length > 80 ? [...lines.slice(0, 80), `... and ${lines.length - 80} more lines`] : lines
  return shown.map((line) => `       ${line}`).join("\n")
}

await main(async () => {
  if (process.argv.length > 2) throw new Advice(`npm run check takes no options, got "${process.argv[2]}".`)
  const workspace = await prepareWorkspace()
  let passed = 0
  let failed = 0
  for (const { name, commands } of checks(workspace)) {
    const begin = Date.now()
    const results = []
    for (const command of commands) results.push(await capture(command, workspace.env))
    const bad = results.filter(({ code }) => code !== 0)
    console.log(`${bad.length === 0 ? "ok    " : "FAILED"} ${name} (${since(begin)})`)
    for (const { output } of bad) console.log(excerpt(output))
    if (bad.length === 0) passed++
    else failed++
  }
  console.log(`${passed} passed, ${failed} failed`)
  return failed > 0 ? 1 : 0
})
