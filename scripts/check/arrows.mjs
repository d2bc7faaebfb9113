/**
 * Keeps the arrows of `docs/architecture.md`: which part may import which, and no circle between the files of a part.
 * Prints what breaks them.
 */
import { globSync, readFileSync } from "node:fs"
import { dirname, join, relative } from "node:path"
import { fileURLToPath } from "node:url"

/** What a part may import of ours. `environments/*` are one kind of part; the command line may import everything. */
const ALLOWED = {
  "packages/core": [],
  "packages/tools": ["packages/core"],
  "packages/ruler": ["packages/core"],
  "packages/env": ["packages/core", "packages/tools"],
  "packages/backend": ["packages/core"],
  environments: ["packages/core", "packages/tools", "packages/ruler", "packages/env"],
  "packages/cli": ["packages/core", "packages/tools", "packages/ruler", "packages/env", "packages/backend", "environments"]
}

/** @typedef {{ file: string, imports: string[] }} Source `file` is relative to the root; `imports` are the specifiers. */

/** What breaks the rules, a sentence each. @param {readonly Source[]} sources @param {ReadonlyMap<string, string>} names part folder by package name */
export const broken = (sources, names) => [...forbidden(sources, names), ...circles(sources)]

/** @param {readonly Source[]} sources @param {ReadonlyMap<string, string>} names */
const forbidden = (sources, names) =>
  sources.flatMap(({ file, imports }) => {
    const own = partOf(file)
    return imports.flatMap((specifier) => {
      const target = specifier.startsWith(".") ? partOf(join(dirname(file), specifier)) : names.get(packageName(specifier))
      if (target === undefined || target === own) return []
      if (specifier.startsWith(".")) return [`${file} imports ${specifier}: another part is imported by its name only`]
      return (ALLOWED[kindOf(own)] ?? []).includes(kindOf(target)) ? [] : [`${file} imports ${specifier}: ${own} must not use ${target}`]
    })
  })

/** Circles of relative imports, each named once. @param {readonly Source[]} sources */
const circles = (sources) => {
  const graph = new Map(
    sources.map(({ file, imports }) => [file, imports.filter((name) => name.startsWith(".")).map((name) => join(dirname(file), name))])
  )
  const done = new Set()
  const found = []
  const visit = (file, path) => {
    if (path.includes(file)) return void found.push(`circle: ${[...path.slice(path.indexOf(file)), file].join(" -> ")}`)
    if (done.has(file)) return
    for (const next of graph.get(file) ?? []) visit(next, [...path, file])
    done.add(file)
  }
  for (const file of graph.keys()) visit(file, [])
  return found
}

const partOf = (file) => file.split("/").slice(0, 2).join("/")
const kindOf = (part) => (part.startsWith("environments/") ? "environments" : part)
const packageName = (specifier) => specifier.split("/").slice(0, specifier.startsWith("@") ? 2 : 1).join("/")

/** Import and export specifiers of a TypeScript file; comments do not count. @param {string} text */
export const importsOf = (text) => {
  const code = text.replace(/\/\*[\s\S]*?\*\/|^\s*\/\/.*$/gm, "")
  const pattern = /^\s*(?:import|export)\s(?:[^"'`;]*?\sfrom\s*)?["']([^"']+)["']|\bimport\(\s*["']([^"']+)["']\s*\)/gm
  return [...code.matchAll(pattern)].map((match) => match[1] ?? match[2])
}

const ROOT = fileURLToPath(new URL("../..", import.meta.url))

/** The parts of this repository. */
export const repository = () => {
  const at = (pattern) => globSync(pattern, { cwd: ROOT }).sort()
  const json = (file) => JSON.parse(readFileSync(join(ROOT, file), "utf8"))
  const names = new Map(at("{packages,environments}/*/package.json").map((file) => [json(file).name, dirname(file)]))
  const sources = at("{packages,environments}/*/src/**/*.ts").map((file) => ({
    file: relative(ROOT, join(ROOT, file)),
    imports: importsOf(readFileSync(join(ROOT, file), "utf8"))
  }))
  return { sources, names }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { sources, names } = repository()
  const problems = broken(sources, names)
  for (const problem of problems) console.log(problem)
  process.exitCode = problems.length > 0 ? 1 : 0
}
