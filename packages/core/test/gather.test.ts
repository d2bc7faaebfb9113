import { assert, describe, it } from "@effect/vitest"
import { Deferred, Effect, Fiber, Ref } from "effect"
import { TestClock } from "effect/testing"
import { exceptionRate, gatherGroups, type GatherOptions, type Played } from "../src/gather.ts"
import { toScoredGroup } from "../src/group.ts"
import { PolicyFailure } from "../src/policy.ts"
import * as Progress from "../src/progress.ts"
import { exchange } from "./samples.ts"

const played = (reward: Played["reward"]): Played => ({ exchanges: [exchange()], reward })
const broken: { readonly item?: { readonly price: number } } = {}

describe("gatherGroups", () => {
  it.effect("plays every scenario groupSize times; scenario seeds are shared, sampling seeds are not", () =>
    Effect.gen(function* () {
      const seeds: Array<readonly [string, number, number]> = []
      const groups = yield* gatherGroups([{ id: "a" }, { id: "b" }], 3, ({ id }, { member, scenarioSeed, seed }) =>
        Effect.sync(() => {
          seeds.push([id, scenarioSeed, seed])
          return played(member)
        })
      )
      assert.deepStrictEqual(
        groups.map(({ id, trajectories }) => [id, trajectories.map((t) => [t.id, t.reward])]),
        [
          ["a", [0, 1, 2].map((n) => [`0/a/${n}`, { _tag: "Scored", total: n, terms: { reward: n } }])],
          ["b", [0, 1, 2].map((n) => [`0/b/${n}`, { _tag: "Scored", total: n, terms: { reward: n } }])]
        ] as never
      )
      assert.strictEqual(new Set(seeds.map(([, scenario]) => scenario)).size, 2)
      assert.strictEqual(new Set(seeds.map(([, , seed]) => seed)).size, 6)
    })
  )

  it.effect("REW-02: a member that throws is recorded with message and stack, its siblings finish", () =>
    Effect.gen(function* () {
      const rollout = (_: string, { member }: { readonly member: number }) =>
        Effect.tryPromise(async () => played(member === 2 ? (broken.item as { price: number }).price : member))
      const groups = yield* gatherGroups(["buy"], 4, rollout)
      const members = groups[0]?.trajectories ?? []
      assert.deepStrictEqual(
        members.map(({ reward }) => reward._tag),
        ["Scored", "Scored", "Unscored", "Scored"]
      )
      assert.match(members[2]?.failure?.message ?? "", /properties of undefined \(reading 'price'\)/u)
      assert.include(members[2]?.failure?.stack, "gather.test.ts")
      assert.deepInclude(members[2], { stopReason: "environment_error", exchanges: [] })
      assert.strictEqual(exceptionRate(groups), 0.25)
      assert.strictEqual(groups.map((group) => toScoredGroup(group))[0]?.trajectories.length, 3)
    })
  )

  it.effect("stops above maxExceptions, a share or a number, with the first root cause", () =>
    Effect.gen(function* () {
      const rollout = (_: string, { member }: { readonly member: number }) =>
        member > 0 ? Effect.fail(new Error(`member ${member} broke`)) : Effect.succeed(played(1))
      for (const [maxExceptions, exceptions] of [
        [0, 1],
        [2, 3],
        [0.25, 2]
      ] as const) {
        const error = yield* Effect.flip(gatherGroups(["s"], 4, rollout, { maxExceptions, concurrency: 1 }))
        assert.strictEqual(error._tag, "TooManyExceptions")
        assert.deepInclude(error, { exceptions, members: 4, trajectory: "0/0/1", cause: "member 1 broke" })
      }
      const groups = yield* gatherGroups(["s"], 4, rollout, { maxExceptions: 3 })
      assert.strictEqual(exceptionRate(groups), 0.75)
    })
  )

  it.effect("infrastructure is told apart from the rollout's own faults, a synchronous throw included", () =>
    Effect.gen(function* () {
      const lost = new PolicyFailure({ policy: "p", message: "gone", attempts: 5 })
      const rollout = (_: string, { member }: { readonly member: number }) => {
        if (member === 0) throw new RangeError("at once")
        return Effect.fail(lost)
      }
      const [group] = yield* gatherGroups(["s"], 2, rollout, { maxExceptions: 2 })
      assert.deepStrictEqual(
        group?.trajectories.map(({ failure, stopReason }) => [failure?.kind, failure?.message, stopReason]),
        [
          ["environment", "at once", "environment_error"],
          ["infrastructure", "gone", "infrastructure"]
        ]
      )
    })
  )

  it.effect("REW-01, ADV-03: a reward that is no finite number leaves its member unscored, never 0", () =>
    Effect.gen(function* () {
      const rewards: ReadonlyArray<unknown> = [
        Number.NaN,
        Number.POSITIVE_INFINITY,
        undefined,
        "0.5",
        true,
        10n,
        null,
        { a: 1, b: "x" },
        {},
        [1, 2],
        new Map([["a", 1]]),
        { a: 1e308, b: 1e308 },
        { a: 1, b: 0.5 }
      ]
      const [group] = yield* gatherGroups(["s"], rewards.length, (_, { member }) =>
        Effect.succeed(played(rewards[member] as number))
      )
      const found = (group?.trajectories ?? []).map(({ reward }) =>
        reward._tag === "Scored" ? reward.total : reward.reason
      )
      const detail = (member: number) => {
        const reward = group?.trajectories[member]?.reward
        return reward?._tag === "Unscored" ? reward.detail : ""
      }
      const expected = "expected a finite number, or a non-empty record of finite numbers."
      assert.strictEqual(detail(3), `Reward term "reward" of 0/0/3 is "0.5"; ${expected}`)
      assert.strictEqual(detail(8), `Reward term "reward" of 0/0/8 is {}; ${expected}`)
      assert.strictEqual(detail(9), `Reward term "reward" of 0/0/9 is [1,2]; ${expected}`)
      assert.deepStrictEqual(found, [...Array.from({ length: 12 }, () => "invalid_reward"), 1.5])
    })
  )

  it.effect("a rollout that gives back nothing is a failure of its member", () =>
    Effect.gen(function* () {
      const [group] = yield* gatherGroups(
        ["s"],
        2,
        (_, { member }) => Effect.succeed(member === 0 ? (undefined as never) : played(1)),
        { maxExceptions: 1 }
      )
      assert.deepInclude(group?.trajectories[0]?.failure, {
        kind: "environment",
        message: "The rollout gave back undefined; expected an object with exchanges and a reward."
      })
    })
  )

  it.effect("a rollout that never ends is reported each minute, and stopped after memberSeconds", () =>
    Effect.gen(function* () {
      const seen: Array<Progress.Event> = []
      const rollout = (_: string, { member }: { readonly member: number }) =>
        member === 1 ? Effect.promise(() => new Promise<Played>(() => undefined)) : Effect.succeed(played(1))
      const gather = (options: GatherOptions<string>) =>
        gatherGroups(["s"], 3, rollout, { maxExceptions: 1, ...options }).pipe(
          Effect.provideService(Progress.Sink, { publish: (event) => Effect.sync(() => seen.push(event)) }),
          Effect.forkChild
        )
      const fiber = yield* gather({ memberSeconds: 150 })
      yield* TestClock.adjust("149 seconds")
      assert.deepStrictEqual(
        seen,
        [60, 120].map((seconds) => ({
          _tag: "Stalled",
          episode: "0/0/1",
          turn: 0,
          waitingFor: "the rollout to end",
          seconds
        }))
      )
      yield* TestClock.adjust("1 seconds")
      const [group] = yield* Fiber.join(fiber)
      const late = group?.trajectories[1]
      assert.deepInclude(late, { stopReason: "timeout", seconds: 150, exchanges: [] })
      assert.deepInclude(late?.reward, { _tag: "Unscored", reason: "environment_error" })
      assert.match(late?.failure?.message ?? "", /0\/0\/1 did not end within 150 s \(memberSeconds\)/u)
      assert.strictEqual(group?.trajectories.filter(({ reward }) => reward._tag === "Scored").length, 2)

      const patient = yield* gather({})
      yield* TestClock.adjust("600 seconds")
      assert.strictEqual((yield* Fiber.join(patient))[0]?.trajectories[1]?.seconds, 600)
      const strict = yield* gather({ maxExceptions: 0, memberSeconds: 1 })
      yield* TestClock.adjust("1 seconds")
      assert.strictEqual((yield* Effect.flip(Fiber.join(strict)))._tag, "TooManyExceptions")
    })
  )

  it.effect("an option that is unknown or out of its range is refused by name", () =>
    Effect.gen(function* () {
      let rollouts = 0
      const refused = (options: object) =>
        Effect.flip(gatherGroups(["a"], 2, () => Effect.sync(() => played(rollouts++)), options))
      for (const [options, found] of [
        [{ concurrency: 0 }, { field: "concurrency", value: "0", expected: "a value greater than or equal to 1" }],
        [{ concurrency: Number.NaN }, { field: "concurrency", value: "NaN", expected: "an integer" }],
        [{ memberSeconds: 0 }, { field: "memberSeconds", value: "0", expected: "a value greater than 0" }],
        [{ maxExceptions: Number.NaN }, { field: "maxExceptions", value: "NaN" }],
        [{ scenarioId: "id" }, { field: "scenarioId", value: '"id"' }],
        [{ iteration: -1 }, { field: "iteration", value: "-1" }],
        [{ seed: 0.5 }, { field: "seed", value: "0.5" }]
      ] as const) {
        assert.deepInclude(yield* refused(options), { _tag: "InvalidGathering", ...found })
      }
      const unknown = yield* refused({ bogus: 1 })
      assert.deepInclude(unknown, { _tag: "InvalidGathering", field: "bogus", value: "1" })
      assert.match(unknown.message, /expected one of the options concurrency, maxExceptions, memberSeconds,/u)
      assert.strictEqual(rollouts, 0)
    })
  )

  it.effect("ADV-08: groups are formed by id; the same id twice is refused, and so is a group of one", () =>
    Effect.gen(function* () {
      const rollout = () => Effect.succeed(played(1))
      const same = [{ prompt: "Convert 3 miles" }, { prompt: "Convert 3 miles" }]
      assert.deepStrictEqual(
        (yield* gatherGroups(same, 2, rollout)).map(({ id }) => id),
        ["0", "1"]
      )
      const twice = yield* Effect.flip(gatherGroups([{ id: "a" }, { id: "a" }], 2, rollout))
      assert.deepInclude(twice, { _tag: "InvalidGathering", field: "scenarios" })
      assert.deepInclude(yield* Effect.flip(gatherGroups(["a"], 1, rollout)), { field: "groupSize", value: "1" })
    })
  )

  it.effect("plays at most `concurrency` at a time, each in a scope of its own; interruption reaches all", () =>
    Effect.gen(function* () {
      const open = yield* Ref.make(0)
      const full = yield* Deferred.make<void>()
      const rollout = () =>
        Effect.gen(function* () {
          yield* Effect.acquireRelease(
            Ref.updateAndGet(open, (n) => n + 1),
            () => Ref.update(open, (n) => n - 1)
          )
          if ((yield* Ref.get(open)) === 3) yield* Deferred.succeed(full, undefined)
          return yield* Effect.never
        })
      const fiber = yield* Effect.forkChild(gatherGroups(["a", "b"], 4, rollout, { concurrency: 3 }))
      yield* Deferred.await(full)
      assert.strictEqual(yield* Ref.get(open), 3)
      yield* Fiber.interrupt(fiber)
      assert.strictEqual(yield* Ref.get(open), 0)
    })
  )
})
