/**
 * A checkout made ready for work: packages, Node 24 and the Python environment.
 */
import { environment, FROM_SOURCE, ROOT, run } from "./child.mjs"
import { ensureInstalled } from "./install.mjs"
import { checkNode, modernNode } from "./node-version.mjs"
import { Advice } from "./say.mjs"

/** The Node to go on with, and how to run the Python of the backend. */
export const prepareWorkspace = async () => {
  checkNode()
  await ensureInstalled(ROOT)
  const node = modernNode(ROOT)
  const made = await run(node, [...FROM_SOURCE, `${ROOT}/scripts/bootstrap/prepare-python.mjs`], { capture: true })
  if (made.code !== 0) throw new Advice("There is no Python environment for the backend, see above.")
  const { python, source } = JSON.parse(made.output)
  const env = { ...environment(), LUDUS_PYTHON_ENV: python, PYTHONPATH: source, PYTHONDONTWRITEBYTECODE: "1" }
  return { node, python, env }
}
