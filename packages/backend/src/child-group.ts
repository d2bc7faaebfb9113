/**
 * A child process that leads a process group of its own and never outlives this process (Linux and macOS).
 *
 * Four ways lead to its end, and each of them takes the whole group, members that ignore SIGTERM too:
 * - the scope closes: end of its standard input, SIGTERM, then SIGKILL;
 * - the leader ends by itself and leaves members behind: SIGKILL;
 * - this process ends, also by a throw: SIGKILL in the `exit` event;
 * - this process is killed by a signal that runs none of its code: a guard (a waiting shell in a session of its own) sees
 *   its pipe close and kills the group.
 */
import { type ChildProcess, spawn } from "node:child_process"
import type { Readable } from "node:stream"
import { Effect, Schema, type Scope } from "effect"

/** The operating system could not start the program; the message is its own. */
export class SpawnFailed extends Schema.TaggedError<SpawnFailed>()("SpawnFailed", { message: Schema.String }) {}

export interface Command {
  readonly file: string
  readonly args: ReadonlyArray<string>
  readonly env: Readonly<Record<string, string>>
  /** Where the standard output goes: a file descriptor, or a pipe that `output` reads. */
  readonly stdout: number | "pipe"
  /** The file descriptor that receives the standard error. */
  readonly stderr: number
  /** Milliseconds between SIGTERM and SIGKILL when the scope closes. Default 2000. */
  readonly patience?: number
}

/** How the leader ended: its exit code, or the signal that ended it. */
export interface Ended {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
}

export interface ChildGroup {
  /** Of the leader, and of the group. */
  readonly pid: number
  /** Its standard output where that is a pipe. Somebody must read it, or the child blocks when the pipe is full. */
  readonly output: Readable | null
  /** Waits for the end of the leader. */
  readonly ended: Effect.Effect<Ended>
  /** Lets this process end by itself although the child still runs; its `exit` event then ends the group. */
  readonly unref: () => void
}

/** Leaders whose groups the `exit` event has to kill. */
const living = new Set<number>()
process.on("exit", () => living.forEach((pid) => signal(pid, "SIGKILL")))

/** Starts the command in its own group; the group is gone when the scope has closed. */
export const startGroup = (command: Command): Effect.Effect<ChildGroup, SpawnFailed, Scope.Scope> =>
  Effect.map(
    Effect.acquireRelease(launch(command), (running) => stop(running, command.patience ?? 2000)),
    (running) => running.group
  )

interface Running {
  readonly child: ChildProcess
  readonly group: ChildGroup
}

const launch = (command: Command): Effect.Effect<Running, SpawnFailed> =>
  Effect.callback((resume) => {
    const child = spawn(command.file, command.args, {
      detached: true,
      env: command.env,
      stdio: ["pipe", command.stdout, command.stderr]
    })
    child.once("error", ({ message }) => resume(Effect.fail(new SpawnFailed({ message }))))
    // A child that has gone makes its pipe fail; its end is told once, by `ended`.
    child.stdin?.on("error", () => {})
    const { pid } = child
    if (pid === undefined) return
    living.add(pid)
    const guard = startGuard(pid)
    const ended = new Promise<Ended>((resolve) => {
      child.once("exit", (code, name) => {
        signal(pid, "SIGKILL")
        living.delete(pid)
        guard.kill("SIGKILL")
        resolve({ code, signal: name })
      })
    })
    const group = { pid, output: child.stdout, ended: Effect.promise(() => ended), unref: () => unref(child) }
    child.once("spawn", () => resume(Effect.succeed({ child, group })))
  })

/** Kills the group one second after this process has gone, which the guard sees as the end of its standard input. */
const startGuard = (pid: number): ChildProcess => {
  const script = 'read -r line; sleep 1; kill -s KILL -- "-$1"'
  const guard = spawn("/bin/sh", ["-c", script, "ludus-guard", String(pid)], {
    detached: true,
    env: { PATH: process.env["PATH"] ?? "/usr/bin:/bin" },
    stdio: ["pipe", "ignore", "ignore"]
  })
  guard.on("error", () => {})
  guard.stdin?.on("error", () => {})
  unref(guard)
  return guard
}

const unref = (child: ChildProcess): void => {
  child.unref()
  for (const pipe of [child.stdin, child.stdout]) {
    if (pipe !== null && "unref" in pipe && typeof pipe.unref === "function") pipe.unref()
  }
}

const stop = ({ child, group }: Running, patience: number): Effect.Effect<void> =>
  Effect.gen(function* () {
    if (!living.has(group.pid)) return
    child.stdin?.end()
    signal(group.pid, "SIGTERM")
    yield* Effect.timeoutOption(group.ended, patience)
    if (living.has(group.pid)) signal(group.pid, "SIGKILL")
    yield* group.ended
    // Members die a moment after the signal. Where nothing reaps them (some containers) they stay as zombies: not for ever.
    for (let i = 0; i < 50 && signal(group.pid, 0); i++) yield* Effect.sleep("20 millis")
  })

/** Sends it to the group (0: nothing, only asks); whether anybody of the group is there. */
const signal = (pid: number, name: NodeJS.Signals | 0): boolean => {
  try {
    return process.kill(-pid, name)
  } catch {
    return false
  }
}
