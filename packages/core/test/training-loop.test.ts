import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import type { BackendService } from "../src/backend/backend.ts"
import type { TrainResult } from "../src/backend/protocol.ts"
import { scripted } from "../src/policy.ts"
import { openRun } from "../src/run/run-directory.ts"
import { runTrainingLoop, type TrainingLoop } from "../src/training-loop.ts"
import { trajectory } from "./samples.ts"

const folder = Effect.acquireRelease(
  Effect.sync(() => mkdtempSync(join(tmpdir(), "ludus-loop-"))),
  (path) => Effect.sync(() => rmSync(path, { recursive: true, force: true }))
)

const notAsked = () => Effect.die("a training loop does not ask for this")

/** A backend that answers train requests with what the test says; the real trainer makes no NaN to order. */
const answering = (results: ReadonlyArray<Partial<TrainResult>>, asked: Array<string>): BackendService => {
  let step = 0
  return {
    url: "",
    token: "",
    capabilities: { protocol: 1, engine: "embedded", losses: [], options: [], deterministic: true },
    register: (model) =>
      Effect.succeed({
        ...model,
        step,
        steps: [step],
        contextLength: 64,
        parameters: 1,
        resumed: false,
        checkpoint: "",
        notices: []
      }),
    checkpoints: () => Effect.succeed([]),
    fork: notAsked,
    deleteCheckpoints: notAsked,
    exportModel: notAsked,
    sft: notAsked,
    policy: (name) => scripted(name, () => ""),
    train: (name, request) =>
      Effect.sync(() => {
        asked.push(request.key)
        const given = results[asked.length - 1] ?? {}
        step += given.trained === false ? 0 : 1
        return {
          step,
          trained: true,
          repeated: false,
          policy: `${name}@${step}`,
          metrics: {},
          nonFinite: [],
          reasons: {},
          ...given
        }
      })
  } as BackendService
}

const skipped = { trained: false, reasons: { non_finite_gradient: 1 } }

const loop = Effect.fnUntraced(function* (iterations: number, results: ReadonlyArray<Partial<TrainResult>>) {
  const directory = yield* folder
  const asked: Array<string> = []
  const run = yield* openRun({ directory, name: "toy", config: {} })
  const options: TrainingLoop<never, never> = {
    run,
    environment: "toy",
    backend: answering(results, asked),
    model: { name: "toy", base: { source: "random" }, lora: { rank: 1, alpha: 1 }, seed: 0 },
    iterations,
    config: {},
    maskTruncated: false,
    budgets: {},
    plan: () => Effect.succeed({ scenarios: [], episodes: 2 }),
    collect: ({ iteration }) =>
      Effect.succeed([
        {
          id: `${iteration}/a`,
          scenario: "a",
          seat: "player",
          trajectories: [trajectory({ id: `${iteration}/a/0` }), trajectory({ id: `${iteration}/a/1` })]
        }
      ]),
    rewardBounds: undefined,
    evaluate: { every: 0, run: () => Effect.succeed([]) }
  }
  return { outcome: yield* Effect.result(runTrainingLoop(options)), asked }
})

describe("the training loop", () => {
  it.effect("one key an iteration; the step moves only where something was trained", () =>
    Effect.gen(function* () {
      const { asked, outcome } = yield* loop(3, [{}, { trained: false, reasons: { zero_variance: 1 } }, {}])
      assert.deepStrictEqual(asked, ["toy:0", "toy:1", "toy:2"])
      assert.strictEqual(outcome._tag, "Success")
      if (outcome._tag === "Failure") return
      assert.deepStrictEqual(
        outcome.success.metrics.map(({ step, trained }) => [step, trained]),
        [
          [1, true],
          [1, false],
          [2, true]
        ]
      )
      assert.strictEqual(outcome.success.metrics[1]?.["skipped/zero_variance"], 1)
    })
  )

  it.effect("TRAIN-02: three updates in a row that are not finite stop the run and name the trajectories", () =>
    Effect.gen(function* () {
      const { asked, outcome } = yield* loop(10, [skipped, {}, skipped, skipped, skipped, {}])
      assert.strictEqual(asked.length, 5)
      assert.strictEqual(outcome._tag, "Failure")
      if (outcome._tag === "Success") return
      assert.strictEqual(outcome.failure._tag, "NonFiniteUpdates")
      assert.include(outcome.failure.message, "4/a/0, 4/a/1")
    })
  )
})
