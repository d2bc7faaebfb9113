import { assert, describe, it } from "@effect/vitest"
import { Effect, Schema } from "effect"
import * as Progress from "../src/progress.ts"

describe("Progress", () => {
  it.effect("goes nowhere by default, and to the sink that is provided", () =>
    Effect.gen(function* () {
      const seen: Array<Progress.Event> = []
      yield* Progress.notice("info", "nobody hears this")
      yield* Progress.notice("warning", "slow disk").pipe(
        Effect.provideService(Progress.Sink, { publish: (event) => Effect.sync(() => seen.push(event)) })
      )
      assert.deepStrictEqual(seen, [{ _tag: "Notice", level: "warning", message: "slow disk" }])
    })
  )

  it.effect("events can be written and read back", () =>
    Effect.gen(function* () {
      const event: Progress.Event = {
        _tag: "Stalled",
        episode: "0/s/0",
        turn: 2,
        waitingFor: "the policy",
        seconds: 61.5
      }
      const encoded = yield* Schema.encodeEffect(Progress.Event)(event)
      assert.deepStrictEqual(yield* Schema.decodeEffect(Progress.Event)(JSON.parse(JSON.stringify(encoded))), event)
    })
  )
})
