/**
 * One process at a time makes an environment; the others wait for it.
 *
 * The lock is `flock` of the operating system, held by a small Python child that ends with this process: there is no stale
 * lock to guess about after a crash.
 */
import { Effect, type Scope } from "effect"
import type { Variables } from "./child-environment.ts"
import { childEnvironment } from "./child-environment.ts"
import { startGroup } from "./child-group.ts"
import { firstLine } from "./first-line.ts"
import type { LogFile } from "./log-file.ts"
import { PythonEnvironmentError } from "./python-environment-error.ts"

const HOLDER = `
import fcntl, sys
file = open(sys.argv[1], "a")
try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("busy", file=sys.stderr, flush=True)
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
    const notice = onWait.pipe(Effect.delay("2 seconds"), Effect.andThen(Effect.never))
    const line = yield* Effect.raceFirst(Effect.raceFirst(firstLine(holder), notice), Effect.as(holder.ended, ""))
    if (line !== "held") return yield* Effect.fail(new Error(log.tail()))
  }).pipe(
    Effect.mapError(
      (error) =>
        new PythonEnvironmentError({
          step: "lock",
          message: `The lock ${path} could not be taken: ${error.message}`,
          advice: "Check that the cache folder can be written, or name another one with LUDUS_CACHE."
        })
    )
  )
