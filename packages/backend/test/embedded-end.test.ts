/**
 * PROC-02: whatever ends the owner of an embedded backend, nothing of it is left: neither a process (the gateway and its two
 * workers all ignore SIGTERM here) nor an open port.
 */
import { assert, describe, it } from "@effect/vitest"
import { Backend } from "@ludus/core"
import { Effect, Exit, Fiber, Layer, Scope } from "effect"
import { layerEmbedded } from "../src/index.ts"
import { fakeEnvironment, closed, running, started, stateFolder, until } from "./fixtures/fake.ts"
import { startOwner } from "./fixtures/own.ts"

const nothingLeft = Effect.fnUntraced(function* (state: string) {
  const { pids, port } = yield* started(state)
  assert.lengthOf(pids, 3)
  yield* until(() => running(pids).length === 0)
  yield* closed(port)
})

describe.concurrent("PROC-02 nothing is left of the backend", { timeout: 120_000 }, () => {
  it.live("when its scope closes, and when it is closed twice", () =>
    Effect.gen(function* () {
      const state = yield* stateFolder
      const scope = yield* Scope.make()
      yield* Layer.buildWithScope(layerEmbedded({ stateRoot: state, environment: fakeEnvironment }), scope)
      const { pids } = yield* started(state)
      assert.lengthOf(running(pids), 3)
      yield* Scope.close(scope, Exit.void)
      yield* nothingLeft(state)
      yield* Scope.close(scope, Exit.void)
    })
  )

  it.live("when it is closed while it starts", () =>
    Effect.gen(function* () {
      const state = yield* stateFolder
      const silent = layerEmbedded({
        stateRoot: state,
        environment: fakeEnvironment,
        variables: { ...process.env, LUDUS_FAKE: "silent" }
      })
      const starting = yield* Effect.forkChild(Effect.provide(Backend, silent))
      yield* started(state)
      yield* Fiber.interrupt(starting)
      yield* nothingLeft(state)
    })
  )

  const endings: ReadonlyArray<readonly [string, string, NodeJS.Signals | undefined]> = [
    ["when its owner gets SIGINT", "wait", "SIGINT"],
    ["when its owner gets SIGKILL", "wait", "SIGKILL"],
    ["when user code throws", "throw", undefined],
    ["when its owner is done", "close", undefined]
  ]
  for (const [name, action, signal] of endings) {
    it.live(name, () =>
      Effect.gen(function* () {
        const state = yield* stateFolder
        const owner = yield* startOwner("fake", state, action)
        const { pids } = yield* started(state)
        if (signal !== undefined) {
          assert.lengthOf(running(pids), 3)
          owner.kill(signal)
        }
        yield* nothingLeft(state)
        yield* until(() => owner.exitCode !== null || owner.signalCode !== null)
      })
    )
  }
})
