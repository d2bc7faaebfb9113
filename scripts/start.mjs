/**
 * `npm start`: installs what is missing, then goes on as `ludus train` with the user's arguments.
 */
import { FROM_SOURCE, ROOT, run } from "./bootstrap/child.mjs"
import { ensureInstalled } from "./bootstrap/install.mjs"
import { checkNode, modernNode } from "./bootstrap/node-version.mjs"
import { main } from "./bootstrap/say.mjs"

await main(async () => {
  checkNode()
  await ensureInstalled(ROOT)
  // somebody who copies `ludus train ...` from the help types the word once more
  const given = process.argv[2] === "train" ? process.argv.slice(3) : process.argv.slice(2)
  const program = [`${ROOT}/packages/cli/src/main.ts`, "train", ...given]
  return (await run(modernNode(ROOT), [...FROM_SOURCE, ...program])).code
})
