import { mkdtempSync, rmSync, writeFileSync } from "node:fs"
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
  }
}

const skipped = { trained: false, reasons: { non_finite_gradient: 1 } }

const loop = Effect.fnUntraced(function* (
  iterations: number,
  results: ReadonlyArray<Partial<TrainResult>>,
  given: { readonly directory?: string } & Partial<TrainingLoop<never, never>> = {}
) {
  const directory = given.directory ?? (yield* folder)
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
    evaluate: { every: 0, run: () => Effect.succeed([]) },
    ...given
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

  it.effect("a cut iteration goes on: what failed is played again, what was finished is not", () =>
    Effect.gen(function* () {
      const directory = yield* folder
      const offered: Array<ReadonlyArray<string>> = []
      const collecting = (broken: boolean): TrainingLoop<never, never>["collect"] => {
        return ({ finished, iteration, onEpisode }) =>
          Effect.gen(function* () {
            offered.push([...finished.keys()])
            const members = [0, 1, 2].map((member) => {
              const played = trajectory({ id: `${iteration}/a/${member}/player`, exchanges: [] })
              const failure = { kind: "environment" as const, message: "broken" }
              const reward = { _tag: "Unscored" as const, reason: "environment_error" as const, detail: "broken" }
              return broken && member > 0 ? { ...played, failure, reward } : played
            })
            for (const [member, played] of members.entries()) {
              if (!finished.has(`${iteration}/a/${member}`))
                yield* Effect.orDie(onEpisode(`${iteration}/a/${member}`, [played]))
            }
            return [{ id: `${iteration}/a`, scenario: "a", seat: "player", trajectories: members }]
          })
      }
      const first = yield* Effect.scoped(loop(1, [], { directory, collect: collecting(true) }))
      assert.strictEqual(first.outcome._tag, "Failure")
      const second = yield* Effect.scoped(loop(1, [], { directory, collect: collecting(false) }))
      assert.strictEqual(second.outcome._tag, "Success")
      assert.deepStrictEqual(offered, [[], ["0/a/0"]])
    })
  )

  it.effect("an iteration that was cut after its step keeps the rewards that it was trained with", () =>
    Effect.gen(function* () {
      const directory = yield* folder
      const judged: TrainingLoop<never, never>["collect"] = ({ iteration, onEpisode }) =>
        Effect.gen(function* () {
          const members = [0, 1].map((member) => trajectory({ id: `${iteration}/a/${member}/player` }))
          for (const [member, played] of members.entries()) {
            yield* Effect.orDie(onEpisode(`${iteration}/a/${member}`, [played]))
          }
          // a group term changes the rewards after the episodes were written
          const trajectories = members.map((played, index) => ({
            ...played,
            reward: { _tag: "Scored" as const, total: 1 + index, terms: { judged: 1 + index } }
          }))
          return [{ id: `${iteration}/a`, scenario: "a", seat: "player", trajectories }]
        })
      yield* Effect.scoped(loop(1, [], { directory, collect: judged }))
      writeFileSync(join(directory, "toy", "metrics.jsonl"), "")
      const again = yield* Effect.scoped(
        loop(1, [], { directory, collect: () => Effect.die("nothing is played again") })
      )
      assert.deepStrictEqual(again.asked, [])
      assert.strictEqual(again.outcome._tag, "Success")
      if (again.outcome._tag === "Failure") return
      const [row] = again.outcome.success.metrics
      assert.deepInclude(row, { "train/reward": 1.5, "groups/trained": 1, step: 1, trained: true })
    })
  )
})
