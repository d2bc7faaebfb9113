/**
 * Runs one check and keeps what it says, to be shown only if it fails.
 */
import { spawn } from "node:child_process"
import { ROOT } from "../bootstrap/child.mjs"

/**
 * @param {import("./checks.mjs").Command} command
 * @param {NodeJS.ProcessEnv} env
 * @returns {Promise<{ code: number, output: string }>}
 */
export const capture = ({ file, args }, env) =>
  new Promise((resolve) => {
    const child = spawn(file, args, { cwd: ROOT, env, stdio: ["ignore", "pipe", "pipe"] })
    let output = ""
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", (text) => (output += text))
    child.on("error", (error) => resolve({ code: 1, output: error.message }))
    child.on("close", (code) => resolve({ code: code ?? 1, output }))
  })
