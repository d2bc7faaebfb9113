/**
 * `npm run test:full`: the quick tests, then what takes longer: twenty kills in the middle of saves and an export of the
 * bundled model (minutes), and the proof that learning is real (three seeds and two controls, about half an hour on two
 * cores).
 */
import { FROM_SOURCE, ROOT, run } from "./bootstrap/child.mjs"
import { main } from "./bootstrap/say.mjs"
import { prepareWorkspace } from "./bootstrap/workspace.mjs"

await main(async () => {
  const { node, python, env } = await prepareWorkspace()
  /** @param {string} name */
  const script = (name) => run(node, [...FROM_SOURCE, `${ROOT}/scripts/${name}`])
  const tests = ["test_checkpoints_store.py", "test_training_crashes.py", "test_engine_export.py"]
  const long = () =>
    run(python, ["-m", "pytest", "-q", "-p", "no:cacheprovider", ...tests.map((test) => `backend/tests/${test}`)], {
      env: { ...env, OMP_NUM_THREADS: "1", LUDUS_FULL: "1" },
      cwd: ROOT
    })
  for (const part of [() => script("test.mjs"), long, () => script("full/prove-learning.ts")]) {
    const { code } = await part()
    if (code !== 0) return code
  }
  return 0
})
