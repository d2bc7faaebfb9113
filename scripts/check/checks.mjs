/**
 * The list of checks. A check is a name and the commands that have to succeed.
 */
import { existsSync, readdirSync } from "node:fs"
import { join } from "node:path"
import { ROOT } from "../bootstrap/child.mjs"

/** @typedef {{ file: string, args: string[] }} Command */
/** @typedef {{ name: string, commands: Command[] }} Check */

/** @param {{ node: string, python: string }} workspace @returns {Check[]} */
export const checks = ({ node, python }) => {
  /** A program of `node_modules/.bin`. @param {string} name @param {string[]} args @returns {Command} */
  const bin = (name, ...args) => ({ file: join(ROOT, "node_modules", ".bin", name), args })
  /** A Python module. @param {string} name @param {string[]} args @returns {Command} */
  const module = (name, ...args) => ({ file: python, args: ["-m", name, ...args] })
  return [
    // first, because type-aware lint reads the declarations that it writes
    { name: "types", commands: [bin("tsc", "-b")] },
    { name: "lint", commands: [bin("oxlint", "--type-aware", "--quiet")] },
    { name: "format", commands: [bin("oxfmt", "--check")] },
    {
      name: "types of tests",
      commands: [...parts.map((part) => `${part}/tsconfig.test.json`), "scripts"].map((project) =>
        bin("tsc", "-p", project)
      )
    },
    ...effectDiagnostics(),
    { name: "unused code", commands: [bin("knip", "--no-config-hints")] },
    { name: "build", commands: [{ file: "npm", args: ["run", "build", "--workspaces", "--if-present"] }] },
    { name: "packages as published", commands: parts.map((part) => bin("publint", part, "--strict")) },
    { name: "types as published", commands: parts.map((part) => bin("attw", "--pack", part, "--profile", "esm-only")) },
    { name: "arrows between parts", commands: [{ file: node, args: ["scripts/check/arrows.ts"] }] },
    { name: "python lint", commands: [module("ruff", "check", "--no-cache", "backend")] },
    { name: "python format", commands: [module("ruff", "format", "--no-cache", "--check", "backend")] },
    {
      name: "python types",
      commands: [module("mypy", "--config-file", "backend/pyproject.toml", "backend/ludus_backend")]
    }
  ]
}

/** The folders of all parts, relative to the root. */
const parts = ["packages", "environments"].flatMap((parent) =>
  readdirSync(join(ROOT, parent)).map((part) => `${parent}/${part}`)
)

/** The diagnostics of Effect's language service exist as a compiler for Linux only. @returns {Check[]} */
const effectDiagnostics = () => {
  const file = join(ROOT, "node_modules", "@effect", "tsgo-linux-x64", "lib", "tsc")
  const args = ["-p", "scripts/check/tsconfig.effect.json"]
  return existsSync(file) ? [{ name: "effect diagnostics", commands: [{ file, args }] }] : []
}
