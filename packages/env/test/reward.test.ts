import { Reward, toScoredGroup } from "@ludus/core"
import { Action, Environment, rollOut, Scenario } from "@ludus/env"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Schema } from "effect"
import { playGroup } from "./fixtures/play.ts"
import { replies } from "./fixtures/replies.ts"

/** One turn; the reward is whatever the test says. */
const oneTurn = (score: (member: number) => unknown, rewardSeconds = 60) => {
  let member = 0
  return class OneTurn extends Environment.Class("one-turn", {
    scenario: Schema.Struct({}),
    state: Schema.Struct({ over: Schema.Boolean }),
    action: Action.text(),
    rewards: { good: Reward.between(0, 1) },
    limits: { turns: 1, rewardSeconds }
  })({
    scenarios: Scenario.list([{}], []),
    start: () => ({ over: false }),
    observe: () => "say something",
    act: () => ({ over: true }),
    done: ({ over }) => over,
    score: () => score(member++) as { readonly good: number }
  }) {}
}

describe("REW-01: a reward that is not a number in its bounds", () => {
  for (const [shown, value] of [
    ["NaN", Number.NaN],
    ["Infinity", Number.POSITIVE_INFINITY],
    ["undefined", undefined],
    ['"0.5"', "0.5"],
    ["true", true],
    ["10n", 10n],
    ["null", null],
    ['""', ""],
    ["1.5", 1.5],
    ["-0.1", -0.1]
  ] as const) {
    it.effect(`${shown} is unscored, named, and never coerced`, () =>
      Effect.gen(function* () {
        const [trajectory] = yield* playGroup(
          oneTurn(() => ({ good: value })),
          replies("x")
        )
        assert.deepStrictEqual(
          trajectory?.reward,
          Reward.Unscored.make({
            reason: "invalid_reward",
            detail: `Reward term "good" of 0/train-0/0/player is ${shown}; expected a number in [0, 1].`
          })
        )
      })
    )
  }

  it.effect("a missing term and an undeclared one are named", () =>
    Effect.gen(function* () {
      const [missing] = yield* playGroup(
        oneTurn(() => ({})),
        replies("x")
      )
      assert.include(missing?.failure?.message, '"good" of 0/train-0/0/player is undefined')
      const [unknown] = yield* playGroup(
        oneTurn(() => ({ good: 1, better: 1 })),
        replies("x")
      )
      assert.include(unknown?.failure?.message, 'term "better"')
      assert.include(unknown?.failure?.message, "one of the declared terms: good")
    })
  )
})

describe("REW-02: one member's reward throws", () => {
  it.effect("its siblings finish, the cause is kept with its stack, and the group of the rest is usable", () =>
    Effect.gen(function* () {
      const environment = oneTurn((member) => {
        if (member === 2) {
          const item = undefined as unknown as { readonly price: number }
          return { good: item.price }
        }
        return { good: member / 4 }
      })
      const [group] = yield* rollOut(environment, {
        batch: "0",
        scenarios: [environment.behaviour.scenarios.at("train", 0, 1)],
        groupSize: 4,
        policies: () => ({ player: replies("x") }),
        trainedSeats: ["player"],
        temperature: 1,
        seed: 1,
        concurrency: 1,
        watchdog: { enter: () => undefined, stop: () => undefined },
        waits: { during: (_episode, _turn, _for, effect) => effect, longerThan: () => Effect.succeed([]) },
        onEpisode: () => Effect.void
      })
      assert.isDefined(group)
      if (group === undefined) return
      const failed = group.trajectories.filter((trajectory) => trajectory.failure !== undefined)
      assert.lengthOf(failed, 1)
      assert.include(failed[0]?.failure?.message, "TypeError: Cannot read properties of undefined (reading 'price')")
      assert.include(failed[0]?.failure?.stack, "reward.test.ts")
      assert.strictEqual(failed.length / group.trajectories.length, 0.25)
      const scored = toScoredGroup(group)
      assert.deepStrictEqual(
        scored.trajectories.map(({ reward }) => reward.total),
        [0, 0.25, 0.75]
      )
      assert.isUndefined(scored.dropped)
    })
  )
})

describe("REW-03: a reward that never comes", () => {
  it.live("is unscored after its time limit; siblings are scored", () =>
    Effect.gen(function* () {
      const environment = oneTurn((member) => (member === 1 ? Effect.never : { good: 1 }), 0.05)
      const members = yield* playGroup(environment, replies("x"), { groupSize: 3, concurrency: 1 })
      assert.deepStrictEqual(
        members.map(({ reward }) => (reward._tag === "Scored" ? reward.total : reward.reason)),
        [1, "reward_timeout", 1]
      )
    })
  )
})

describe("turn and group terms", () => {
  class Walk extends Environment.Class("walk", {
    scenario: Schema.Struct({}),
    state: Schema.Struct({ at: Schema.Int }),
    action: Action.pattern(/(\d)/u, Schema.NumberFromString),
    rewards: {
      arrived: Reward.between(0, 1),
      progress: Reward.perTurn(0, 9, { weight: 0.5, discount: 0.5 }),
      rank: Reward.group(0, 1, {
        weight: 2,
        score: (group) => Effect.succeed(group.trajectories.map((_, index) => index / group.trajectories.length))
      })
    },
    limits: { turns: 3 }
  })({
    scenarios: Scenario.list([{}], []),
    start: () => ({ at: 0 }),
    observe: ({ at }) => String(at),
    act: ({ at }, step) => ({ at: at + step }),
    done: ({ at }) => at >= 9,
    score: ({ at }) => ({ arrived: at >= 9 ? 1 : 0 }),
    scoreTurn: ({ action }) => ({ progress: action })
  }) {}

  it.effect("are weighted, discounted and named beside the episode's", () =>
    Effect.gen(function* () {
      const members = yield* playGroup(Walk, replies("4", "2", "3"), { groupSize: 2 })
      // progress: 4 + 2/2 + 3/4 = 5.75; total: 1 + 0.5 x 5.75 + 2 x rank
      assert.deepStrictEqual(
        members.map(({ reward }) => reward),
        [
          Reward.Scored.make({ total: 3.875, terms: { arrived: 1, progress: 5.75, rank: 0 } }),
          Reward.Scored.make({ total: 4.875, terms: { arrived: 1, progress: 5.75, rank: 0.5 } })
        ]
      )
      assert.deepStrictEqual(
        members[0]?.exchanges.map(({ turnReward }) => turnReward),
        [2, 1, 1.5]
      )
    })
  )

  it.effect("a group term that fails leaves the group unscored, with its reason", () =>
    Effect.gen(function* () {
      class Judged extends Environment.Class("judged", {
        ...oneTurn(() => undefined).spec,
        rewards: { judged: Reward.group(0, 1, { score: () => Effect.fail(new Error("the judge is away")) }) }
      })({
        scenarios: Scenario.list([{}], []),
        start: () => ({ over: false }),
        observe: () => "",
        act: () => ({ over: true }),
        done: ({ over }) => over,
        score: () => ({})
      }) {}
      const members = yield* playGroup(Judged, replies("x"), { groupSize: 2 })
      assert.deepStrictEqual(
        members[0]?.reward,
        Reward.Unscored.make({
          reason: "judge_failed",
          detail:
            'judged: group term "judged" of environment "judged" (group 0/train-0/player) failed: Error: the judge is away'
        })
      )
      assert.strictEqual(
        toScoredGroup({ id: "g", scenario: "s", seat: "player", trajectories: members }).dropped,
        "too_few_scored"
      )
    })
  )
})
