/**
 * The commands that fill an environment, each with advice for the ways in which it is known to fail.
 */
import { Effect } from "effect"
import { startGroup } from "./child-group.ts"
import type { LogFile } from "./log-file.ts"
import { PythonEnvironmentError } from "./python-environment-error.ts"

export interface Installation {
  readonly step: "venv" | "torch" | "packages" | "model"
  readonly file: string
  readonly args: ReadonlyArray<string>
  readonly env: Readonly<Record<string, string>>
  readonly log: LogFile
}

/** Runs one command to its end, its output going to the log. Fails with the last lines of it. Interrupting it kills it. */
export const install = (command: Installation): Effect.Effect<void, PythonEnvironmentError> =>
  Effect.gen(function* () {
    const { descriptor } = command.log
    const child = yield* startGroup({ ...command, stdout: descriptor, stderr: descriptor })
    const ended = yield* child.ended
    if (ended.code !== 0) return yield* failed(command, command.log.tail())
  }).pipe(
    Effect.catchTag("SpawnFailed", ({ message }) => failed(command, message)),
    Effect.scoped
  )

const failed = ({ step, log }: Installation, output: string): PythonEnvironmentError =>
  new PythonEnvironmentError({
    step,
    message: `${FAILED[step]}\n${output}\n(all of it: ${log.path})`,
    advice: adviceFor(output)
  })

const FAILED = {
  venv: "The Python environment could not be made:",
  torch: "torch could not be installed:",
  packages: "The packages of the backend could not be installed:",
  model: "The bundled model could not be installed:"
}

/** What to do, from what the command said. The first that matches counts. */
const KNOWN: ReadonlyArray<readonly [RegExp, string]> = [
  [
    /no space left|disk quota|errno 28/i,
    "Free 2.5 GB of disk, or name a cache folder on a larger disk with LUDUS_CACHE."
  ],
  [
    /ensurepip|no module named '?venv/i,
    "This Python lacks its venv module: install it (on Debian and Ubuntu: apt install python3-venv), or set LUDUS_PYTHON to another Python 3.11 to 3.13."
  ],
  [/certificate|ssl/i, "The package index could not be trusted: name your network's certificate with PIP_CERT."],
  [
    /connection|name resolution|timed out|timeout|unreachable|proxy|getaddrinfo/i,
    "The package index could not be reached: check the network and HTTPS_PROXY, then start again; what was downloaded is kept."
  ],
  [/401|403|forbidden|credential/i, "The package index refused: check PIP_INDEX_URL and LUDUS_TORCH_INDEX."],
  [
    /no matching distribution|could not find a version|resolutionimpossible/i,
    "The package index has no such version for this Python and platform: check LUDUS_TORCH_INDEX and PIP_INDEX_URL, or set LUDUS_PYTHON to Python 3.11."
  ],
  [/permission denied|read-only/i, "The cache folder cannot be written: name another one with LUDUS_CACHE."]
]

/** Advice for the output of a failed installation. */
export const adviceFor = (output: string): string =>
  KNOWN.find(([pattern]) => pattern.test(output))?.[1] ??
  "Start again; if it fails the same way, set LUDUS_PYTHON to another Python 3.11 to 3.13."
