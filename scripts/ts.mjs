/**
 * `npm run ts -- ./file.ts`: runs a TypeScript file of yours with the workspace's packages, as they are in the source.
 */
import { resolve } from "node:path"
import { FROM_SOURCE, ROOT, run } from "./bootstrap/child.mjs"
import { ensureInstalled } from "./bootstrap/install.mjs"
import { checkNode, modernNode } from "./bootstrap/node-version.mjs"
import { Advice, main } from "./bootstrap/say.mjs"

await main(async () => {
  const [file, ...args] = process.argv.slice(2)
  if (file === undefined) throw new Advice("Name the file to run: npm run ts -- ./train.ts")
  checkNode()
  await ensureInstalled(ROOT)
  return (await run(modernNode(ROOT), [...FROM_SOURCE, resolve(process.env.INIT_CWD ?? ".", file), ...args])).code
})
