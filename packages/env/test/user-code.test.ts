/**
 * Whatever a user's function does is a failure of its own episode, with a message that names the function; it never takes
 * the run along and is never taken for a value.
 */
import { Reward, type Trajectory } from "@ludus/core"
import { Action, Environment, evaluateEnvironment, Scenario } from "@ludus/env"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Fiber, Schema } from "effect"
import { playGroup } from "./fixtures/play.ts"
import { replies } from "./fixtures/replies.ts"

const spec = {
  scenario: Schema.Struct({}),
  state: Schema.Struct({ n: Schema.Int }),
  action: Action.text(),
  rewards: { good: Reward.between(0, 1) },
  limits: { turns: 2, environmentSeconds: 0.05, rewardSeconds: 0.05 }
}
const sound = {
  scenarios: Scenario.list([{}], []),
  start: () => ({ n: 0 }),
  observe: () => "go on",
  act: ({ n }: { readonly n: number }) => ({ n: n + 1 }),
  done: ({ n }: { readonly n: number }) => n > 1,
  score: () => ({ good: 1 })
}

/** The message of the one member's failure when a hook is replaced. */
const failureWith = (hooks: object) =>
  Effect.map(
    playGroup(Environment.Class("user", spec)({ ...sound, ...hooks }), replies("x")),
    ([trajectory]: ReadonlyArray<Trajectory>) => trajectory?.failure?.message ?? "no failure"
  )

const rejecting = async () => {
  throw new Error("lost")
}

describe("a function of the user's", () => {
  for (const [name, hooks, message] of [
    ["start gives a Promise", { start: async () => ({ n: 0 }) }, '"start" of environment "user"'],
    ["done gives a Promise", { done: async () => false }, '"done"'],
    ["act gives a Promise that rejects", { act: rejecting }, '"act"'],
    ["score gives a Promise that rejects", { score: rejecting }, '"score"'],
    ["observe gives a Promise", { observe: async () => "x" }, '"observe"']
  ] as const) {
    it.effect(`${name}: it is told to return an Effect`, () =>
      Effect.gen(function* () {
        const told = yield* failureWith(hooks)
        assert.include(told, message)
        assert.include(told, "gave a Promise; return a value or an Effect")
      })
    )
  }

  for (const [name, hooks, message] of [
    ["start gives no state", { start: () => ({ m: 0 }) }, 'gave {"m":0}; expected a state as its Schema describes it'],
    ["act gives nothing", { act: () => undefined }, "gave undefined; expected a state"],
    ["start gives Action.illegal", { start: () => Action.illegal("no") }, "expected a state"],
    ["observe gives nothing", { observe: () => undefined }, "gave undefined; expected a text"],
    ["next names no seat", { next: () => 10n }, "gave 10n; expected one of player"],
    [
      "metrics gives null",
      { metrics: () => null },
      '"metrics" of environment "user" (episode 0/train-0/0, turn 2) gave null'
    ],
    ["metrics takes a name of ours", { metrics: () => ({ reward: 99 }) }, 'gave "reward"; expected names that Ludus'],
    [
      "throws an object without a prototype",
      {
        act: () => {
          throw Object.create(null)
        }
      },
      '"act"'
    ],
    ["interrupts itself", { act: () => Effect.interrupt }, '"act"']
  ] as const) {
    it.effect(name, () =>
      Effect.gen(function* () {
        assert.include(yield* failureWith(hooks), message)
      })
    )
  }

  it.live("never answers and cannot be interrupted: its time is up all the same", () =>
    Effect.gen(function* () {
      assert.include(
        yield* failureWith({ act: () => Effect.uninterruptible(Effect.never) }),
        "did not answer within 0.05 s"
      )
    })
  )

  it.live("has a finalizer that never ends, or throws: the episode fails, nothing hangs", () =>
    Effect.gen(function* () {
      const withFinalizer = (finalizer: Effect.Effect<void>) =>
        failureWith({
          start: () =>
            Effect.as(
              Effect.addFinalizer(() => finalizer),
              { n: 0 }
            )
        })
      assert.include(yield* withFinalizer(Effect.never), "finalizers of environment")
      assert.include(yield* withFinalizer(Effect.die(new Error("cannot close"))), "Error: cannot close")
    })
  )

  it.live("is interrupted with its episode, and its resources are released", () =>
    Effect.gen(function* () {
      let open = 0
      const hold = Effect.acquireRelease(
        Effect.sync(() => open++),
        () => Effect.sync(() => open--)
      )
      const environment = Environment.Class("held", { ...spec, limits: { turns: 2 } })({
        ...sound,
        start: () => Effect.as(hold, { n: 0 }),
        act: () => Effect.never
      })
      const fiber = yield* Effect.forkChild(playGroup(environment, replies("x"), { groupSize: 20 }))
      yield* Effect.sleep("50 millis")
      assert.strictEqual(open, 20)
      yield* Fiber.interrupt(fiber)
      assert.strictEqual(open, 0)
    })
  )
})

describe("a group term", () => {
  for (const [name, score, message] of [
    [
      "throws",
      () => {
        throw new Error("no judge")
      },
      "Error: no judge"
    ],
    ["dies", () => Effect.die(new Error("dead")), "Error: dead"],
    ["gives a Promise", async () => [1, 1], "gave a Promise"],
    ["gives too few values", () => Effect.succeed([1]), "expected 2 numbers, one per member"],
    ["gives too many values", () => Effect.succeed([1, 1, 1]), "expected 2 numbers, one per member"],
    ["never answers", () => Effect.never, "did not answer within 0.05 s"]
  ] as const) {
    it.live(`${name}: the group is unscored, with the reason`, () =>
      Effect.gen(function* () {
        const term = Reward.group(0, 1, { score: score as Reward.GroupTerm<never>["score"] })
        const environment = Environment.Class("judged", { ...spec, rewards: { good: spec.rewards.good, term } })(sound)
        for (const { reward } of yield* playGroup(environment, replies("x"), { groupSize: 2 })) {
          assert.strictEqual(reward._tag, "Unscored")
          if (reward._tag === "Unscored") assert.include(reward.detail, message)
        }
      })
    )
  }
})

describe("several seats", () => {
  it.effect("without named opponents, the policy plays all of them", () =>
    Effect.gen(function* () {
      const two = Environment.Class("two", { ...spec, seats: ["x", "o"] })({
        ...sound,
        scenarios: Scenario.list([{}], [{}, {}]),
        next: ({ n }) => (n % 2 === 0 ? "x" : "o")
      })
      const [row] = yield* evaluateEnvironment(two, [replies("hm")])
      assert.strictEqual(row?.figures["episodes"], 2)
      assert.strictEqual(row?.reward, 1)
    })
  )
})
