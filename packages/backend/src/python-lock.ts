/**
 * One process at a time makes an environment; the others wait for it.
 *
 * The lock is `flock` of the operating system, held by a small Python child that ends with this process: there is no stale
 * lock to guess about after a crash.
 */
import { Effect, type Scope } from "effect"
import { childEnvironment, type Variables } from "./child-environment.ts"
import { startGroup } from "./child-group.ts"
import { firstLine } from "./first-line.ts"
import type { LogFile } from "./log-file.ts"
import { PythonEnvironmentError } from "./python-environment-error.ts"

const HOLDER = `
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
`

/** Takes the lock at `path` until the scope closes; `onWait` runs if another process has it after 2 seconds. */
export const takeLock = (
  python: string,
  path: string,
  log: LogFile,
  variables: Variables,
  onWait: Effect.Effect<void>
): Effect.Effect<void, PythonEnvironmentError, Scope.Scope> =>
  Effect.gen(function* () {
    const holder = yield* startGroup({
      file: python,
      args: ["-I", "-c", HOLDER, path],
      env: childEnvironment(variables),
      stdout: "pipe",
      stderr: log.descriptor
    })
    const ended = Effect.flatMap(holder.ended, () => notTaken(path, log.tail()))
    const notice = onWait.pipe(Effect.delay("2 seconds"), Effect.andThen(Effect.never))
    yield* Effect.raceFirst(firstLine(holder, ended), notice)
  }).pipe(Effect.catchTag("SpawnFailed", ({ message }) => notTaken(path, message)))

const notTaken = (path: string, why: string): PythonEnvironmentError =>
  new PythonEnvironmentError({
    step: "lock",
    message: `The lock ${path} could not be taken: ${why}`,
    advice: "Check that the cache folder can be written, or name another one with LUDUS_CACHE."
  })
