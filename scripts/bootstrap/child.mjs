/**
 * Runs a command in this process's stead: same input and output, signals passed on, its end waited for.
 */
import { spawn } from "node:child_process"
import { constants } from "node:os"
import { delimiter, join } from "node:path"
import { fileURLToPath } from "node:url"
import { onOrphaned } from "./orphaned.mjs"

export const ROOT = fileURLToPath(new URL("../..", import.meta.url)).replace(/\/$/, "")

/** Makes a child end in good order when its parent was killed. */
const FOLLOW = ["--import", new URL("follow-parent.mjs", import.meta.url).href]

/** Arguments for Node to run the workspace's TypeScript as it is, without a build. */
export const FROM_SOURCE = [...FOLLOW, "--conditions=@ludus/source"]

/** The installed programs first on the PATH, so that `#!/usr/bin/env node` finds the installed Node. */
export const environment = () => ({
  ...process.env,
  PATH: [join(ROOT, "node_modules", ".bin"), process.env.PATH].join(delimiter)
})

/**
 * The exit code of the command; 128 + n where signal n ended it.
 *
 * Ctrl-C reaches a whole terminal group, so child and parent both get it, and npm sends it once more: it is passed on once,
 * and then waited for. `capture` keeps the standard output for the caller, otherwise the user sees it.
 * @param {string} file @param {readonly string[]} args @param {{ env?: NodeJS.ProcessEnv, cwd?: string, capture?: boolean }} [options]
 * @returns {Promise<{ code: number, output: string }>}
 */
export const run = (file, args, options = {}) =>
  new Promise((resolve, reject) => {
    const { env = environment(), cwd = process.cwd(), capture = false } = options
    const child = spawn(file, args, { env, cwd, stdio: ["inherit", capture ? "pipe" : "inherit", "inherit"] })
    let output = ""
    child.stdout?.setEncoding("utf8").on("data", (text) => (output += text))
    const sent = new Set()
    /** @param {NodeJS.Signals} signal */
    const pass = (signal) => {
      if (!sent.has(signal)) child.kill(signal)
      sent.add(signal)
    }
    /** @type {NodeJS.Signals[]} */
    const signals = ["SIGINT", "SIGTERM", "SIGHUP"]
    for (const signal of signals) process.on(signal, pass)
    const unwatch = onOrphaned(() => pass("SIGTERM"))
    child.on("error", reject)
    child.on("close", (code, signal) => {
      for (const name of signals) process.off(name, pass)
      unwatch()
      resolve({ code: code ?? 128 + (signal === null ? 0 : constants.signals[signal]), output })
    })
  })
