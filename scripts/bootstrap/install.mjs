/**
 * Installs the npm packages where they are missing or not those of the lock file, quietly and once.
 */
import { spawn } from "node:child_process"
import { readFileSync } from "node:fs"
import { join } from "node:path"
import { Advice, say, since } from "./say.mjs"

/**
 * Whether what is installed is what the lock file says. npm writes the inventory of `node_modules` last, so half an installation
 * has none. Optional packages may be missing: they are for other platforms.
 * @param {string} root
 */
export const isInstalled = (root) => {
  const wanted = packages(join(root, "package-lock.json"))
  const inventory = packages(join(root, "node_modules", ".package-lock.json"))
  return Object.entries(wanted).every(([path, entry]) => {
    if (!path.startsWith("node_modules/") && !path.includes("/node_modules/")) return true
    const found = inventory[path]
    return found === undefined ? entry.optional === true : found.version === entry.version
  })
}

/** @param {string} file @returns {Record<string, { version?: string, optional?: boolean }>} */
const packages = (file) => {
  try {
    return JSON.parse(readFileSync(file, "utf8")).packages ?? {}
  } catch (error) {
    if (error instanceof Error && "code" in error && error.code === "ENOENT") return {}
    throw error
  }
}

/** Says nothing and does nothing where everything is there. @param {string} root */
export const ensureInstalled = async (root) => {
  if (isInstalled(root)) return
  say("Installing the npm packages (about 100 MB, half a minute) ...")
  const begin = Date.now()
  const { code, output } = await npm(root, ["ci", "--loglevel=error", "--no-audit", "--no-fund", "--no-progress"])
  if (code !== 0) throw new Advice(`npm could not install the packages:\n${output.trim()}\n${adviceFor(output)}`)
  say(`Installed the npm packages (${since(begin)}).`)
}

/**
 * Runs npm with the Node that the user started: the one in `node_modules/.bin` is about to be replaced.
 * @param {string} root @param {string[]} args @returns {Promise<{ code: number, output: string }>}
 */
const npm = (root, args) =>
  new Promise((resolve, reject) => {
    const { npm_execpath: script, npm_node_execpath: node } = process.env
    const child =
      script === undefined
        ? spawn("npm", args, { cwd: root })
        : spawn(node ?? process.execPath, [script, ...args], { cwd: root })
    let output = ""
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", (text) => (output += text))
    child.on("error", (error) =>
      reject(
        new Advice(`npm could not be started: ${error.message}. It comes with Node; install both and start again.`)
      )
    )
    child.on("close", (code) => resolve({ code: code ?? 1, output }))
  })

/** @param {string} output */
const adviceFor = (output) => {
  if (/ENOTFOUND|EAI_AGAIN|ETIMEDOUT|ECONNREFUSED|ECONNRESET|network/i.test(output))
    return "The registry could not be reached: check the network and npm's proxy settings, then start again."
  if (/ENOSPC/i.test(output)) return "The disk is full: free 1 GB and start again."
  if (/EACCES|EPERM|EROFS/i.test(output))
    return "The folder of this checkout cannot be written: check its owner and permissions."
  return "Remove the folder node_modules and start again."
}
