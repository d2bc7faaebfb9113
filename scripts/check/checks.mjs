/**
 * The list of checks. A check is a name and the commands that have to succeed.
 */
import { existsSync, globSync } from "node:fs"
import { ROOT } from "../bootstrap/child.mjs"

/** @param {{ node: string, python: string }} workspace */
export const checks = ({ node, python }) => {
  const bin = (name) => `${ROOT}/node_modules/.bin/${name}`
  const effect = `${ROOT}/node_modules/@effect/tsgo-linux-x64/lib/tsc`
  const tests = globSync("{packages,environments}/*/tsconfig.test.json", { cwd: ROOT })
  const module = (name, ...args) => [python, "-m", name, ...args]
  return [
    { name: "lint", commands: [[bin("oxlint"), "--type-aware", "--quiet"]] },
    { name: "format", commands: [[bin("oxfmt"), "--check"]] },
    { name: "types", commands: [[bin("tsc"), "-b"]] },
    { name: "types of tests", commands: tests.map((file) => [bin("tsc"), "-p", file]) },
    // The diagnostics of Effect's language service exist as a compiler for Linux only.
    ...(existsSync(effect) ? [{ name: "effect diagnostics", commands: [[effect, "-p", "scripts/check/tsconfig.effect.json"]] }] : []),
    { name: "unused code", commands: [[bin("knip")]] },
    { name: "arrows", commands: [[node, "scripts/check/arrows.mjs"]] },
    { name: "python lint", commands: [module("ruff", "check", "--no-cache", "backend")] },
    { name: "python format", commands: [module("ruff", "format", "--no-cache", "--check", "backend")] },
    { name: "python types", commands: [module("mypy", "--config-file", "backend/pyproject.toml", "backend/ludus_backend")] }
  ]
}
