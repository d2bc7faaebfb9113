/**
 * Keeps the arrows of `docs/architecture.md`: which part may import which, and no circle between the files of a part.
 * As a program it prints what breaks them, a line each.
 */
import { globSync, readFileSync } from "node:fs"
import { dirname, join } from "node:path"
import { fileURLToPath } from "node:url"

/** What a part may import of ours. `environments/*` are one kind of part. */
const ALLOWED: Readonly<Record<string, ReadonlyArray<string>>> = {
  "packages/core": [],
  "packages/tools": ["packages/core"],
  "packages/ruler": ["packages/core"],
  "packages/env": ["packages/core", "packages/tools"],
  "packages/backend": ["packages/core"],
  environments: ["packages/core", "packages/tools", "packages/ruler", "packages/env"],
  "packages/cli": [
    "packages/core",
    "packages/tools",
    "packages/ruler",
    "packages/env",
    "packages/backend",
    "environments"
  ]
}

interface Source {
  /** Relative to the root of the repository. */
  readonly file: string
  /** The specifiers as they are written. */
  readonly imports: ReadonlyArray<string>
}

/** What breaks the rules, a sentence each; `names` gives the part of a package's name. */
export const broken = (sources: ReadonlyArray<Source>, names: ReadonlyMap<string, string>): ReadonlyArray<string> => [
  ...sources.flatMap((source) => forbidden(source, names)),
  ...circles(sources)
]

const forbidden = ({ file, imports }: Source, names: ReadonlyMap<string, string>): ReadonlyArray<string> => {
  const own = partOf(file)
  return imports.flatMap((specifier) => {
    const isPath = specifier.startsWith(".")
    const target = isPath ? partOf(join(dirname(file), specifier)) : names.get(packageName(specifier))
    if (target === undefined || target === own) return []
    if (isPath) return [`${file} imports ${specifier}: another part is imported by its name only`]
    const allowed = ALLOWED[kindOf(own)] ?? []
    return allowed.includes(kindOf(target)) ? [] : [`${file} imports ${specifier}: ${own} must not use ${target}`]
  })
}

const circles = (sources: ReadonlyArray<Source>): ReadonlyArray<string> => {
  const graph = new Map(
    sources.map(({ file, imports }) => [
      file,
      imports.filter((name) => name.startsWith(".")).map((name) => join(dirname(file), name))
    ])
  )
  const done = new Set<string>()
  const found: Array<string> = []
  const visit = (file: string, path: ReadonlyArray<string>): void => {
    const start = path.indexOf(file)
    if (start >= 0) found.push(`circle: ${[...path.slice(start), file].join(" -> ")}`)
    if (start >= 0 || done.has(file)) return
    for (const next of graph.get(file) ?? []) visit(next, [...path, file])
    done.add(file)
  }
  for (const file of graph.keys()) visit(file, [])
  return found
}

const partOf = (file: string) => file.split("/").slice(0, 2).join("/")
const kindOf = (part: string) => (part.startsWith("environments/") ? "environments" : part)
const packageName = (specifier: string) =>
  specifier
    .split("/")
    .slice(0, specifier.startsWith("@") ? 2 : 1)
    .join("/")

/** The specifiers of imports and exports in a TypeScript file; comments do not count. */
export const importsOf = (text: string): ReadonlyArray<string> => {
  const code = text.replace(/\/\*[\s\S]*?\*\/|^\s*\/\/.*$/gm, "")
  const fixed = /^\s*(?:import|export)\s(?:[^"'`;]*?\sfrom\s*)?["']([^"']+)["']/gm
  const lazy = /\bimport\(\s*["']([^"']+)["']\s*\)/g
  return [...code.matchAll(fixed), ...code.matchAll(lazy)].flatMap((match) => match[1] ?? [])
}

const ROOT = fileURLToPath(new URL("../..", import.meta.url))

/** The parts of this repository. */
export const repository = (): {
  readonly sources: ReadonlyArray<Source>
  readonly names: ReadonlyMap<string, string>
} => {
  const read = (file: string) => readFileSync(join(ROOT, file), "utf8")
  const manifests = globSync("{packages,environments}/*/package.json", { cwd: ROOT })
  return {
    names: new Map(manifests.map((file) => [String(JSON.parse(read(file)).name), dirname(file)])),
    sources: globSync("{packages,environments}/*/src/**/*.ts", { cwd: ROOT }).map((file) => ({
      file,
      imports: importsOf(read(file))
    }))
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { sources, names } = repository()
  const problems = broken(sources, names)
  for (const problem of problems) console.log(problem)
  process.exitCode = problems.length > 0 ? 1 : 0
}
