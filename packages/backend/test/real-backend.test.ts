/**
 * The real gateway and engine as children: they start, and whichever of the three processes is killed, none is left.
 * Needs the Python environment; where there is none yet, it is made first (`npm test` has it made).
 */
import { readdirSync, readFileSync } from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Schema } from "effect"
import { pythonEnvironment } from "../src/index.ts"
import { closed, running, stateFolder, until } from "./fixtures/fake.ts"
import { startOwner } from "./fixtures/own.ts"

const Health = Schema.Struct({ status: Schema.Literal("ok"), enginePid: Schema.Int })

/** Processes that were started with the state folder among their arguments, the owner apart. */
const children = (state: string, owner: number | undefined): ReadonlyArray<number> =>
  readdirSync("/proc")
    .map(Number)
    .filter((pid) => pid > 0 && pid !== owner && commandLine(pid).includes(state))

const commandLine = (pid: number): string => {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8")
  } catch {
    return ""
  }
}

/** Starts an owner with a real backend and finds the processes. */
const start = Effect.gen(function* () {
  yield* pythonEnvironment()
  const state = yield* stateFolder
  const owner = yield* startOwner("real", state, "wait")
  const url = yield* Effect.callback<string>((resume) => {
    owner.stdout?.once("data", (line) => resume(Effect.succeed(String(line).trim())))
  })
  const body = yield* Effect.promise(() => fetch(`${url}/health`).then((response) => response.json()))
  const { enginePid } = yield* Schema.decodeUnknownEffect(Health)(body)
  const pids = children(state, owner.pid)
  const gateway = pids.find((pid) => pid !== enginePid && commandLine(pid).includes("serve"))
  assert.include(pids, enginePid)
  assert.isDefined(gateway)
  const nothingLeft = Effect.andThen(
    until(() => children(state, owner.pid).length === 0),
    closed(Number(new URL(url).port))
  )
  return { owner, enginePid, gateway: gateway ?? 0, nothingLeft }
})

describe.runIf(process.platform === "linux").concurrent("PROC-02 nothing is left", { timeout: 600_000 }, () => {
  it.live("when the gateway gets SIGKILL", () =>
    Effect.gen(function* () {
      const { gateway, nothingLeft } = yield* start
      process.kill(gateway, "SIGKILL")
      yield* nothingLeft
    })
  )

  it.live("when first the engine and then the owner gets SIGKILL", () =>
    Effect.gen(function* () {
      const { owner, enginePid, nothingLeft } = yield* start
      process.kill(enginePid, "SIGKILL")
      yield* until(() => running([enginePid]).length === 0)
      owner.kill("SIGKILL")
      yield* nothingLeft
    })
  )
})
