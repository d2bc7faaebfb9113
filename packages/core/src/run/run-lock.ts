/**
 * One process at a time writes to a run directory. The lock is a file that names its holder; the lock of a dead process
 * is taken over.
 */
import { link, readFile, rename, unlink, writeFile } from "node:fs/promises"
import { hostname } from "node:os"
import { join } from "node:path"
import { Effect, Option, Schema, type Scope } from "effect"
import { fileError, RunError } from "./run-error.ts"

const Holder = Schema.fromJsonString(
  Schema.Struct({
    pid: Schema.Int,
    host: Schema.String,
    /** Kernel start time of the process where it is known: a pid may be given to another process later. */
    started: Schema.NullOr(Schema.String)
  })
)
type Holder = typeof Holder.Type

/** Holds `<directory>/lock` until the scope closes. Fails with `locked`, naming the holder's pid, if another one holds it. */
export const lockRun = (directory: string): Effect.Effect<void, RunError, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.tryPromise({
      try: () => acquire(join(directory, "lock")),
      catch: (cause) =>
        cause instanceof RunError ? cause : fileError(join(directory, "lock"), "lock the run with")(cause)
    }),
    () => Effect.promise(() => unlink(join(directory, "lock")).catch(() => undefined))
  ).pipe(Effect.asVoid)

const acquire = async (path: string): Promise<void> => {
  const self: Holder = { pid: process.pid, host: hostname(), started: await startTime(process.pid) }
  const mine = `${path}.${process.pid}`
  await writeFile(mine, JSON.stringify(self))
  try {
    // `link` puts the finished file in place, or fails if there is one: no reader ever sees half a lock.
    for (let attempt = 0; attempt < 3; attempt++) {
      if (await linked(mine, path)) return
      const text = await readFile(path, "utf8").catch(() => "")
      const holder = Option.getOrUndefined(Schema.decodeOption(Holder)(text))
      if (holder !== undefined && (await alive(holder))) throw locked(path, holder)
      await removeStale(path, text)
    }
    throw locked(path, undefined)
  } finally {
    await unlink(mine).catch(() => undefined)
  }
}

const linked = (from: string, to: string): Promise<boolean> =>
  link(from, to).then(
    () => true,
    (cause: NodeJS.ErrnoException) => (cause.code === "EEXIST" ? false : Promise.reject(cause))
  )

/** Moves the stale lock away; puts it back if another process has replaced it in between. */
const removeStale = async (path: string, stale: string): Promise<void> => {
  const aside = `${path}.stale.${process.pid}`
  const moved = await rename(path, aside).then(
    () => true,
    () => false
  )
  if (!moved) return
  if ((await readFile(aside, "utf8")) !== stale) await linked(aside, path)
  await unlink(aside).catch(() => undefined)
}

const alive = async (holder: Holder): Promise<boolean> => {
  if (holder.host !== hostname()) return true
  try {
    process.kill(holder.pid, 0)
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code === "ESRCH") return false
  }
  const started = await startTime(holder.pid)
  return started === null || holder.started === null || started === holder.started
}

/** Field 22 of /proc/<pid>/stat (proc(5)); `null` on systems without it. */
const startTime = (pid: number): Promise<string | null> =>
  readFile(`/proc/${pid}/stat`, "utf8").then(
    (stat) => stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19] ?? null,
    () => null
  )

const locked = (path: string, holder: Holder | undefined): RunError => {
  const who = holder === undefined ? "another process" : `process ${holder.pid} on ${holder.host}`
  return new RunError({
    code: "locked",
    message: `This run is in use by ${who}.`,
    field: path,
    value: holder === undefined ? "taken" : String(holder.pid),
    expected: "a run that no other process writes to",
    advice: `Wait for it or stop it, or choose another run name. If nothing runs there any more, delete ${path}.`
  })
}
