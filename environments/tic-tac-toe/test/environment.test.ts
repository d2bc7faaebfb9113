import { Message, Policy, type Reward, type Trajectory } from "@ludus/core"
import {
  checkDeclaration,
  type Environment,
  evaluateEnvironment,
  type Evaluation,
  type InvalidEnvironment
} from "@ludus/env"
import { Baselines, draw, TicTacToe, TicTacToeDigits } from "@ludus/tic-tac-toe"
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"

/** What a policy that always says the same gets, on `count` held-out scenarios. */
const playedBy = (environment: typeof TicTacToe | typeof TicTacToeDigits, says: (turn: number) => string, count = 50) =>
  Effect.map(
    evaluateEnvironment<Environment.Any>(environment, [Policy.scripted("says", (_messages, { turn }) => says(turn))], {
      scenarios: count
    }),
    trajectoriesOf
  ) as Effect.Effect<ReadonlyArray<Trajectory>, InvalidEnvironment>

const trajectoriesOf = ([evaluation]: ReadonlyArray<Evaluation>): ReadonlyArray<Trajectory> =>
  (evaluation?.groups ?? []).flatMap((group) => group.trajectories)

const [randomLegal, firstFree] = Baselines.digits
const [, , , heuristic] = Baselines.ticTacToe
if (randomLegal === undefined || firstFree === undefined || heuristic === undefined)
  throw new Error("baselines are missing")

const totals = (trajectories: ReadonlyArray<{ readonly reward: Reward.Reward }>) =>
  new Set(
    trajectories.map(({ reward }) => (reward._tag === "Scored" ? Number(reward.total.toFixed(6)) : reward.reason))
  )

describe("the board as text", () => {
  it("shows marks, and numbers for free squares", () => {
    assert.strictEqual(draw("...X....."), "123\nX56\n789")
    assert.strictEqual(draw("XO......X"), "XO3\n456\n78X")
  })
})

describe("TicTacToeDigits", () => {
  it.effect("is a sound declaration", () => checkDeclaration(TicTacToeDigits, { seed: 0, count: 20 }))

  it.effect("a reply without a digit: -0.7; an illegal one after one legal move: -0.4", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(totals(yield* playedBy(TicTacToeDigits, () => "hello")), new Set([-0.7]))
      const twice = yield* playedBy(TicTacToeDigits, () => "5")
      const afterOne = twice.filter(({ metrics }) => metrics["turns"] === 2)
      assert.isAbove(afterOne.length, 20)
      assert.deepStrictEqual(totals(afterOne), new Set([-0.4]))
    })
  )

  it.effect("a lost game is worth more than any illegal reply and less than a draw", () =>
    Effect.gen(function* () {
      const [row] = yield* evaluateEnvironment(TicTacToeDigits, [randomLegal], { scenarios: 300 })
      const seen = totals((row?.groups ?? []).flatMap((group) => group.trajectories))
      assert.deepStrictEqual(seen, new Set([0, 0.5, 1]))
    })
  )

  it.effect("the opponent plays alike for all members of a group", () =>
    Effect.gen(function* () {
      const [row] = yield* evaluateEnvironment(TicTacToeDigits, [firstFree], { scenarios: 20, episodes: 4 })
      for (const group of row?.groups ?? []) {
        assert.strictEqual(
          new Set(group.trajectories.map(({ exchanges }) => JSON.stringify(exchanges.map(({ messages }) => messages))))
            .size,
          1
        )
      }
    })
  )
})

describe("TicTacToe", () => {
  it.effect("is a sound declaration", () => checkDeclaration(TicTacToe, { seed: 0, count: 20 }))

  it.effect("plays both sides: O answers a board that X has begun", () =>
    Effect.gen(function* () {
      const [row] = yield* evaluateEnvironment(TicTacToe, [heuristic], { scenarios: 100 })
      const first = (row?.groups ?? []).map(({ trajectories }) => {
        const shown = trajectories[0]?.exchanges[0]?.messages.at(-1)
        return shown === undefined ? "" : Message.text(shown)
      })
      assert.isTrue(first.some((text) => text === "You are X.\n123\n456\n789"))
      assert.isTrue(first.some((text) => text.startsWith("You are O.") && /X/u.test(text.slice(10))))
      // a random opponent: published win rates of the heuristic against random play are about nine in ten
      assert.isAbove(row?.reward ?? 0, 0.85)
    })
  )

  it.effect("an illegal reply costs at most half a point, less the later it comes", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(totals(yield* playedBy(TicTacToe, () => "no")), new Set([-0.5]))
      const seen = totals(yield* playedBy(TicTacToe, () => "<move>5</move>"))
      for (const total of seen) assert.include([-0.5, -0.4], total)
    })
  )
})
