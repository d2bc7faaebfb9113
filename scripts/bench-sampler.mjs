/**
 * `npm run bench:sampler`: our sampler through its HTTP endpoint against `generate` of transformers, same lengths and threads.
 * Arguments go to the Python program, which says what they are (`-- --help`).
 */
import { ROOT, run } from "./bootstrap/child.mjs"
import { main } from "./bootstrap/say.mjs"
import { prepareWorkspace } from "./bootstrap/workspace.mjs"

await main(async () => {
  const { python, env } = await prepareWorkspace()
  return (await run(python, [`${ROOT}/backend/benchmarks/bench_sampler.py`, ...process.argv.slice(2)], { env })).code
})
