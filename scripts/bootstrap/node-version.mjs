/**
 * Which Node does what: any Node from 20 runs the bootstrap; the rest runs on the Node 24 that the packages bring along.
 */
import { existsSync } from "node:fs"
import { join } from "node:path"
import { Advice } from "./say.mjs"

/** Whether `version` (`"24.21.0"`) is at least `minimum`. @param {string} version @param {string} minimum */
export const atLeast = (version, minimum) => {
  const parts = version.split(".").map(Number)
  for (const [place, wanted] of minimum.split(".").map(Number).entries()) {
    const part = parts[place] ?? 0
    if (part !== wanted) return part > wanted
  }
  return true
}

/** Ends with advice where this Node is too old for the bootstrap. */
export const checkNode = (version = process.versions.node) => {
  if (atLeast(version, "20.0.0")) return
  throw new Advice(
    `Ludus needs Node 20 or newer to start; this is Node ${version}. Install the current LTS version of Node and start again.`
  )
}

/** The Node to go on with: the installed one, else this one where it is new enough. @param {string} root */
export const modernNode = (root) => {
  const installed = join(root, "node_modules", ".bin", "node")
  if (existsSync(installed)) return installed
  if (atLeast(process.versions.node, "22.19.0")) return process.execPath
  throw new Advice(
    `Ludus runs on Node 22.19 or newer. No ready Node 24 comes along for ${process.platform}-${process.arch}, and this is Node ` +
      `${process.versions.node}: install Node 24 and start again.`
  )
}
