import { Policy, Reward } from "@ludus/core"
import { Action, Environment, Scenario } from "@ludus/env"
import { assert, describe, it } from "@effect/vitest"
import { Context, Effect, Layer, Schema } from "effect"
import { GuessNumber } from "./fixtures/guess-number.ts"
import { playGroup } from "./fixtures/play.ts"
import { replies } from "./fixtures/replies.ts"

/** Counts up by what the policy says; 9 is illegal, the game is over at 10 or more. */
class CountUp extends Environment.Class("count-up", {
  scenario: Schema.Struct({ from: Schema.Int }),
  state: Schema.Struct({ total: Schema.Int }),
  action: Action.pattern(/^(\d)$/u, Schema.NumberFromString, { fixedLength: true }),
  rewards: { reached: Reward.between(0, 1) },
  limits: { turns: 4, tokensPerTurn: 5, invalidReplies: 1 }
})({
  scenarios: Scenario.list([{ from: 0 }], [{ from: 1 }]),
  start: ({ from }) => ({ total: from }),
  observe: ({ total }) => `total ${total}`,
  act: ({ total }, add) => (add === 9 ? Action.illegal("9 is forbidden") : { total: total + add }),
  done: ({ total }) => total >= 10,
  score: ({ total }) => ({ reached: Math.min(1, total / 10) })
}) {}

const only = <A>(items: ReadonlyArray<A>): A => {
  const [item, ...rest] = items
  if (item === undefined || rest.length > 0) throw new Error(`expected one item, got ${items.length}`)
  return item
}

describe("an episode", () => {
  it.effect("goes on until the environment is done", () =>
    Effect.gen(function* () {
      const trajectory = only(yield* playGroup(CountUp, replies("4", "6")))
      assert.strictEqual(trajectory.stopReason, "completed")
      assert.deepStrictEqual(trajectory.reward, Reward.Scored.make({ total: 1, terms: { reached: 1 } }))
      assert.deepStrictEqual(
        trajectory.exchanges.map((exchange) => exchange.messages),
        [[{ role: "user", content: "total 0" }], [{ role: "user", content: "total 4" }]]
      )
      assert.strictEqual(trajectory.metrics["turns"], 2)
    })
  )

  it.effect("ends with max_turns, scored", () =>
    Effect.gen(function* () {
      const trajectory = only(yield* playGroup(CountUp, replies("1")))
      assert.strictEqual(trajectory.stopReason, "max_turns")
      assert.deepStrictEqual(trajectory.reward, Reward.Scored.make({ total: 0.4, terms: { reached: 0.4 } }))
    })
  )

  it.effect("LOOP-15: the first invalid action is handled like any other, and leaves the state alone", () =>
    Effect.gen(function* () {
      const first = only(yield* playGroup(CountUp, replies("9", "nine")))
      assert.strictEqual(first.stopReason, "invalid_action")
      assert.strictEqual(first.exchanges.length, 2)
      assert.deepStrictEqual(first.exchanges[1]?.messages, [{ role: "user", content: "9 is forbidden\ntotal 0" }])
      assert.strictEqual(first.metrics["illegal_actions"], 1)
      assert.strictEqual(first.metrics["unparsed_replies"], 1)
      const later = only(yield* playGroup(CountUp, replies("3", "9", "9")))
      assert.strictEqual(later.stopReason, "invalid_action")
      assert.deepStrictEqual(later.exchanges[2]?.messages, [{ role: "user", content: "9 is forbidden\ntotal 3" }])
      assert.deepStrictEqual(later.reward, Reward.Scored.make({ total: 0.3, terms: { reached: 0.3 } }))
    })
  )

  it.effect("LOOP-15: nothing is asked and nothing acts after the end", () =>
    Effect.gen(function* () {
      const trajectory = only(yield* playGroup(CountUp, replies("5", "5", "1")))
      assert.strictEqual(trajectory.exchanges.length, 2)
      assert.deepStrictEqual(trajectory.reward, Reward.Scored.make({ total: 1, terms: { reached: 1 } }))
    })
  )

  it.effect("a cut reply is max_tokens only if its action does not decode: a one-token action is complete", () =>
    Effect.gen(function* () {
      const whole = only(yield* playGroup(CountUp, replies({ content: "5", finishReason: "length" })))
      assert.strictEqual(whole.stopReason, "completed")
      assert.isFalse(whole.truncated)
      const cut = only(yield* playGroup(CountUp, replies({ content: "five and", finishReason: "length" })))
      assert.strictEqual(cut.stopReason, "max_tokens")
      assert.isTrue(cut.truncated)
      assert.strictEqual(cut.reward._tag, "Scored")
    })
  )

  it.effect("LOOP-03: a cut free-text reply is truncated, though it decodes; the reward is still computed", () =>
    Effect.gen(function* () {
      class Answer extends Environment.Class("answer", {
        scenario: Schema.Struct({}),
        state: Schema.Struct({ said: Schema.String }),
        action: Action.text(),
        rewards: { right: Reward.between(0, 1) },
        limits: { turns: 1 }
      })({
        scenarios: Scenario.list([{}], []),
        start: () => ({ said: "" }),
        observe: () => "6 x 7?",
        act: (_state, said) => ({ said }),
        done: ({ said }) => said !== "",
        score: ({ said }) => ({ right: said.endsWith("42") ? 1 : 0 })
      }) {}
      const cut = only(yield* playGroup(Answer, replies({ content: "The answer is 4", finishReason: "length" })))
      assert.isTrue(cut.truncated)
      assert.deepStrictEqual(cut.reward, Reward.Scored.make({ total: 0, terms: { right: 0 } }))
      const whole = only(yield* playGroup(Answer, replies("The answer is 42")))
      assert.isFalse(whole.truncated)
    })
  )

  it.effect("LOOP-10: a prompt that does not fit is the ending context_length; the turns before it stay, scored", () =>
    Effect.gen(function* () {
      let asked = 0
      const overflowing: Policy.Policy = {
        name: "overflowing",
        open: (episode) =>
          Effect.map(replies("1").open(episode), (conversation) => ({
            ask: (messages, options) =>
              asked++ === 3
                ? Effect.fail(new Policy.ContextOverflow({ message: "maximum context length is 8192 tokens" }))
                : conversation.ask(messages, options)
          }))
      }
      const trajectory = only(yield* playGroup(CountUp, overflowing))
      assert.strictEqual(trajectory.stopReason, "context_length")
      assert.strictEqual(trajectory.exchanges.length, 3)
      assert.deepStrictEqual(trajectory.reward, Reward.Scored.make({ total: 0.3, terms: { reached: 0.3 } }))
      assert.strictEqual(asked, 4)
    })
  )

  it.effect("an endpoint that failed for good drops its trajectory and no other", () =>
    Effect.gen(function* () {
      const failing: Policy.Policy = {
        name: "failing",
        open: (episode) =>
          episode.id === "0/train-0/1"
            ? Effect.fail(new Policy.PolicyFailure({ policy: "failing", message: "HTTP 503", attempts: 4 }))
            : replies("5").open(episode)
      }
      const members = yield* playGroup(CountUp, failing, { groupSize: 3 })
      assert.deepStrictEqual(
        members.map((member) => member.stopReason),
        ["completed", "infrastructure", "completed"]
      )
      assert.deepStrictEqual(
        members[1]?.reward,
        Reward.Unscored.make({ reason: "infrastructure", detail: "failing: HTTP 503" })
      )
    })
  )

  it.live("ends with timeout when the policy does not answer in time, and interrupts the request", () =>
    Effect.gen(function* () {
      let interrupted = false
      class Slow extends Environment.Class("slow", { ...CountUp.spec, limits: { turns: 4, seconds: 0.05 } })({
        ...CountUp.behaviour
      }) {}
      const silent: Policy.Policy = {
        name: "silent",
        open: () =>
          Effect.succeed({
            ask: () =>
              Effect.onInterrupt(Effect.never, () =>
                Effect.sync(() => {
                  interrupted = true
                })
              )
          })
      }
      const trajectory = only(yield* playGroup(Slow, silent))
      assert.strictEqual(trajectory.stopReason, "timeout")
      assert.isTrue(interrupted)
    })
  )
})

describe("same seed, same episode", () => {
  const player = Policy.scripted("guesser", (_messages, { seed }) => `<guess>${seed % 100}</guess>`)
  it.effect("also when a thousand interleave in another order", () =>
    Effect.gen(function* () {
      const summary = (concurrency: number) =>
        Effect.map(playGroup(GuessNumber, player, { groupSize: 1000, concurrency }), (members) =>
          members.map(({ exchanges, reward }) => ({ said: exchanges.map(({ reply }) => reply.content), reward }))
        )
      assert.deepStrictEqual(yield* summary(1), yield* summary(1000))
    })
  )

  it.effect("members of a group start alike and sample differently", () =>
    Effect.gen(function* () {
      const members = yield* playGroup(GuessNumber, player, { groupSize: 8 })
      const starts = new Set(members.map(({ exchanges }) => JSON.stringify(exchanges[0]?.messages)))
      const said = new Set(members.map(({ exchanges }) => JSON.stringify(exchanges.map(({ reply }) => reply.content))))
      assert.strictEqual(starts.size, 1)
      assert.strictEqual(said.size, 8)
    })
  )
})

describe("LOOP-13: concurrent episodes", () => {
  interface Store {
    readonly put: (key: string, value: number) => void
    readonly get: (key: string) => number | undefined
  }
  class Notes extends Context.Service<Notes, Store>()("test/Notes") {}
  let opened = 0
  let closed = 0
  const notes = Layer.effect(
    Notes,
    Effect.acquireRelease(
      Effect.sync(() => {
        opened++
        const store = new Map<string, number>()
        return { put: (key: string, value: number) => void store.set(key, value), get: (key: string) => store.get(key) }
      }),
      () => Effect.sync(() => closed++)
    )
  )
  class NotesGame extends Environment.Class("notes", {
    scenario: Schema.Struct({}),
    state: Schema.Struct({ wrote: Schema.Int, read: Schema.Int }),
    action: Action.pattern(/(\d+)/u, Schema.NumberFromString),
    rewards: { same: Reward.between(0, 1) },
    limits: { turns: 1 }
  })(
    {
      scenarios: Scenario.list([{}], []),
      start: () => ({ wrote: -1, read: -2 }),
      observe: () => "write a number",
      act: (_state, value) =>
        Effect.gen(function* () {
          const store = yield* Notes
          store.put("x", value)
          yield* Effect.sleep("20 millis")
          return { wrote: value, read: store.get("x") ?? -3 }
        }),
      done: ({ wrote }) => wrote >= 0,
      score: ({ read, wrote }) => ({ same: read === wrote ? 1 : 0 })
    },
    { perEpisode: notes }
  ) {}

  it.live("each read their own writes, from services of their own that are closed with them", () =>
    Effect.gen(function* () {
      const byMember = Policy.scripted("by-member", (_messages, { seed }) => String(seed % 1_000_003))
      const members = yield* playGroup(NotesGame, byMember, { groupSize: 8 })
      assert.deepStrictEqual(
        members.map(({ reward }) => reward._tag === "Scored" && reward.total),
        Array.from({ length: 8 }, () => 1)
      )
      assert.strictEqual(opened, 8)
      assert.strictEqual(closed, 8)
    })
  )
})
