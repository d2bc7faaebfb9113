/**
 * `npm run test:full`: the quick tests, then the proof that learning is real (three seeds and two controls, about half an
 * hour on two cores).
 */
import { FROM_SOURCE, ROOT, run } from "./bootstrap/child.mjs"
import { main } from "./bootstrap/say.mjs"
import { prepareWorkspace } from "./bootstrap/workspace.mjs"

await main(async () => {
  const { node } = await prepareWorkspace()
  for (const script of ["test.mjs", "full/prove-learning.ts"]) {
    const { code } = await run(node, [...FROM_SOURCE, `${ROOT}/scripts/${script}`])
    if (code !== 0) return code
  }
  return 0
})
