import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import { progressView } from "../src/progress-view.ts"

const events = [
  {
    _tag: "RunStarted",
    run: "r",
    directory: "runs/r",
    environment: "game",
    policy: "r@0",
    iteration: 0,
    iterations: 2,
    rewards: [],
    resumed: false
  },
  { _tag: "IterationStarted", iteration: 0, scenarios: 1, episodes: 2 },
  { _tag: "EpisodeFinished", iteration: 0, episode: "0/a/0", reward: 1, stopReason: "completed", done: 1, total: 2 },
  {
    _tag: "IterationFinished",
    iteration: 0,
    step: 1,
    trained: true,
    metrics: {
      "train/reward": 0.5,
      "train/turns": 3,
      "train/win": 0.25,
      "groups/trained": 1,
      "groups/total": 1,
      "seconds/rollout": 1.25,
      "seconds/train": 2
    }
  },
  { _tag: "Notice", level: "warning", message: "careful" },
  { _tag: "RunEnded", reason: "interrupted", iterations: 1, step: 1 }
] as const

const shown = (isTerminal: boolean) =>
  Effect.gen(function* () {
    let text = ""
    const view = progressView({ isTerminal, write: (part) => (text += part) })
    for (const event of events) yield* view.publish(event)
    return text
  })

describe("progress", () => {
  it.effect("piped: plain lines, without control characters", () =>
    Effect.gen(function* () {
      assert.strictEqual(
        yield* shown(false),
        [
          "Training r@0 on game; the run lies in runs/r",
          "iteration 1/2  step 1  reward 0.500  win 0.25  groups 1/1  rollouts 1.3 s  update 2.0 s  ▁",
          "warning: careful",
          "Stopped after 1 iterations, step 1; the same name resumes the run.",
          ""
        ].join("\n")
      )
    })
  )
  it.effect("on a terminal: a living line that the next one replaces", () =>
    Effect.gen(function* () {
      const text = yield* shown(true)
      assert.include(text, "\r\u001b[Kiteration 1/2  rollouts ██████████░░░░░░░░░░ 1/2\r\u001b[Kiteration 1/2  step 1")
    })
  )
})
