/**
 * Gathering groups with a rollout of your own: every scenario is played `groupSize` times, with bounded concurrency. A
 * member that throws is recorded with message and stack; its siblings finish.
 */
import { Cause, Clock, Effect, Exit, Schema, type Scope } from "effect"
import { failedTrajectory, type Played, played, toFailure } from "./gather-member.ts"
import type { Group } from "./group.ts"
import { derive } from "./seed.ts"
import type { Failure } from "./trajectory.ts"

export type { Played } from "./gather-member.ts"

/** Where a member stands in the gathering. */
export interface Member {
  /** 0 .. groupSize - 1 */
  readonly member: number
  /** `iteration/scenario/member`. */
  readonly id: string
  /** Shared by the members of a scenario: for the environment's randomness. */
  readonly scenarioSeed: number
  /** Differs between members: for sampling. */
  readonly seed: number
}

export interface GatherOptions<S> {
  /** Rollouts at a time. Default 16. */
  readonly concurrency?: number
  /** Above this the gathering stops: a share of all members (below 1), or a number of them. Default 0.25. */
  readonly maxExceptions?: number
  /** Identity of a scenario's group. Default: its `id`, else its place in the list. */
  readonly scenarioId?: (scenario: S, index: number) => string
  /** Part of ids and seeds. Default 0. */
  readonly iteration?: number
  /** Default 0. */
  readonly seed?: number
}

/** The gathering cannot start as it was asked for. */
export class InvalidGathering extends Schema.TaggedError<InvalidGathering>()("InvalidGathering", {
  field: Schema.String,
  value: Schema.String,
  expected: Schema.String,
  advice: Schema.String
}) {
  override get message() {
    return `${this.field} is ${this.value}; expected ${this.expected}. ${this.advice}`
  }
}

/** Too many rollouts failed; the first of them says why. */
export class TooManyExceptions extends Schema.TaggedError<TooManyExceptions>()("TooManyExceptions", {
  exceptions: Schema.Natural,
  allowed: Schema.Finite,
  members: Schema.Natural,
  /** Trajectory that failed first. */
  trajectory: Schema.String,
  cause: Schema.String,
  stack: Schema.String
}) {
  override get message() {
    return `${this.exceptions} of ${this.members} rollouts failed (allowed: ${this.allowed}). The first, ${this.trajectory}: ${this.cause}\n${this.stack}`
  }
}

/** Plays every scenario `groupSize` times. Each rollout has a scope of its own, closed when it ends. */
export const gatherGroups = Effect.fn("gatherGroups")(function* <S, E, R>(
  scenarios: ReadonlyArray<S>,
  groupSize: number,
  rollout: (scenario: S, member: Member) => Effect.Effect<Played, E, R>,
  options: GatherOptions<S> = {}
): Effect.fn.Return<ReadonlyArray<Group>, InvalidGathering | TooManyExceptions, Exclude<R, Scope.Scope>> {
  const ids = scenarios.map(options.scenarioId ?? defaultId)
  yield* check(ids, groupSize)
  const iteration = options.iteration ?? 0
  const total = ids.length * groupSize
  const maximum = options.maxExceptions ?? 0.25
  const allowed = maximum < 1 ? maximum * total : maximum
  const failed: Array<{ readonly id: string; readonly failure: Failure }> = []

  const play = (scenario: S, scenarioId: string, member: number) =>
    Effect.gen(function* () {
      const id = `${iteration}/${scenarioId}/${member}`
      const startedAt = yield* Clock.currentTimeMillis
      const place: Member = {
        member,
        id,
        scenarioSeed: derive(options.seed ?? 0, iteration, scenarioId),
        seed: derive(options.seed ?? 0, iteration, scenarioId, member)
      }
      const exit = yield* Effect.exit(Effect.scoped(Effect.suspend(() => rollout(scenario, place))))
      if (Exit.isFailure(exit) && Cause.hasInterruptsOnly(exit.cause)) return yield* Effect.interrupt
      const seconds = ((yield* Clock.currentTimeMillis) - startedAt) / 1000
      const base = { id, group: scenarioId, scenario: scenarioId, seat: "policy", member, startedAt, seconds }
      if (Exit.isSuccess(exit)) return played(base, exit.value)
      const failure = toFailure(exit.cause)
      failed.push({ id, failure })
      const first = failed[0]
      if (failed.length > allowed && first !== undefined) {
        return yield* new TooManyExceptions({
          exceptions: failed.length,
          allowed,
          members: total,
          trajectory: first.id,
          cause: first.failure.message,
          stack: first.failure.stack ?? ""
        })
      }
      return failedTrajectory(base, failure)
    })

  const jobs = scenarios.flatMap((scenario, index) =>
    Array.from({ length: groupSize }, (_, member) => play(scenario, ids[index] ?? "", member))
  )
  const trajectories = yield* Effect.all(jobs, { concurrency: options.concurrency ?? 16 })
  return ids.map((id) => ({
    id,
    scenario: id,
    seat: "policy",
    trajectories: trajectories.filter(({ group }) => group === id)
  }))
})

/** Share of members whose rollout failed. */
export const exceptionRate = (groups: ReadonlyArray<Group>): number => {
  const members = groups.flatMap(({ trajectories }) => trajectories)
  return members.length === 0 ? 0 : members.filter(({ failure }) => failure !== undefined).length / members.length
}

const defaultId = (scenario: unknown, index: number): string => {
  const id = typeof scenario === "object" && scenario !== null && "id" in scenario ? scenario.id : undefined
  return typeof id === "string" || typeof id === "number" ? String(id) : String(index)
}

const check = (ids: ReadonlyArray<string>, groupSize: number): Effect.Effect<void, InvalidGathering> => {
  if (!Number.isInteger(groupSize) || groupSize < 2) {
    return Effect.fail(
      new InvalidGathering({
        field: "groupSize",
        value: String(groupSize),
        expected: "a whole number of at least 2",
        advice: "Rewards are compared inside a group: a group of one teaches nothing."
      })
    )
  }
  const twice = ids.find((id, index) => ids.indexOf(id) !== index)
  return twice === undefined
    ? Effect.void
    : Effect.fail(
        new InvalidGathering({
          field: "scenarios",
          value: `two with the id "${twice}"`,
          expected: "each scenario id once",
          advice: "Give the scenarios ids of their own, or pass scenarioId."
        })
      )
}
