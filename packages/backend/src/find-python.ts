/**
 * Finds a Python that the backend runs on: `LUDUS_PYTHON`, else the first of `python3.13`, `python3.12`, `python3.11` and
 * `python3` on the PATH whose version is 3.11 to 3.13.
 */
import { execFile } from "node:child_process"
import { Effect } from "effect"
import type { Variables } from "./child-environment.ts"
import { PythonEnvironmentError } from "./python-environment-error.ts"

export interface Python {
  /** The interpreter itself, not a shim or a link on the PATH. */
  readonly executable: string
  /** `3.11`, `3.12` or `3.13`. */
  readonly minor: string
  /** `3.11.7` */
  readonly version: string
}

const CANDIDATES = ["python3.13", "python3.12", "python3.11", "python3"]
const SUPPORTED = new Set(["3.11", "3.12", "3.13"])
const ADVICE = "Install Python 3.11, 3.12 or 3.13, or set LUDUS_PYTHON to the path of one."

/** Fails with step `python`, saying which interpreters were found and why they do not do. */
export const findPython = Effect.fn("Backend.findPython")(function* (variables: Variables) {
  const chosen = variables["LUDUS_PYTHON"]
  const tried: Array<string> = []
  for (const name of chosen === undefined || chosen === "" ? CANDIDATES : [chosen]) {
    const found = yield* probe(name, variables)
    if (typeof found === "string") tried.push(found)
    else if (SUPPORTED.has(found.minor)) return found
    else tried.push(`${name} is Python ${found.version}`)
  }
  const seen = tried.filter((line) => line !== "")
  const message =
    chosen === undefined || chosen === ""
      ? `No Python 3.11 to 3.13 is on the PATH${seen.length > 0 ? ` (${seen.join("; ")})` : ""}.`
      : `LUDUS_PYTHON is "${chosen}", but ${seen.join("; ") || "there is no such program"}; expected Python 3.11 to 3.13.`
  return yield* new PythonEnvironmentError({ step: "python", message, advice: ADVICE })
})

/** The interpreter, or why it cannot be used; the empty text where there is no such program. */
const probe = (name: string, variables: Variables): Effect.Effect<Python | string> =>
  Effect.callback((resume) => {
    const script =
      "import sys, platform; print(sys.executable); print(platform.python_version()); print(sys.implementation.name)"
    const { PYTHONHOME: _home, PYTHONPATH: _path, ...env } = variables
    const child = execFile(name, ["-I", "-c", script], { env, timeout: 20_000 }, (error, stdout) => {
      const [executable = "", version = "", implementation = ""] = stdout.trim().split("\n")
      if (error !== null)
        resume(Effect.succeed(error.code === "ENOENT" || error.code === 127 ? "" : `${name} does not run`))
      else if (implementation !== "cpython") resume(Effect.succeed(`${name} is ${implementation}, not CPython`))
      else resume(Effect.succeed({ executable, version, minor: version.split(".").slice(0, 2).join(".") }))
    })
    return Effect.sync(() => child.kill("SIGKILL"))
  })
