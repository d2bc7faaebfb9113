/**
 * Gathering groups with a rollout of your own: every scenario is played `groupSize` times, with bounded concurrency. A
 * member that throws, or takes too long, is recorded with message and stack; its siblings finish.
 */
import { Cause, Clock, Effect, Exit, Schema, type Scope } from "effect"
import { failedTrajectory, type Played, played, toFailure, wholePlayed } from "./gather-member.ts"
import { checkGroups, type GatherOptions, type InvalidGathering, resolveGathering } from "./gather-options.ts"
import { inTime, MemberTimeout } from "./gather-time.ts"
import type { Group } from "./group.ts"
import { derive } from "./seed.ts"
import type { Failure } from "./trajectory.ts"

export type { Played } from "./gather-member.ts"
export { type GatherOptions, InvalidGathering } from "./gather-options.ts"

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
  const { concurrency, iteration, maxExceptions, memberSeconds, scenarioId, seed } = yield* resolveGathering(options)
  const ids = scenarios.map(scenarioId)
  yield* checkGroups(ids, groupSize)
  const total = ids.length * groupSize
  const allowed = maxExceptions < 1 ? maxExceptions * total : maxExceptions
  const failed: Array<{ readonly id: string; readonly failure: Failure }> = []

  const play = (scenario: S, group: string, member: number) =>
    Effect.gen(function* () {
      const id = `${iteration}/${group}/${member}`
      const startedAt = yield* Clock.currentTimeMillis
      const place: Member = {
        member,
        id,
        scenarioSeed: derive(seed, iteration, group),
        seed: derive(seed, iteration, group, member)
      }
      const rolledOut = Effect.scoped(Effect.suspend(() => rollout(scenario, place)))
      const exit = yield* Effect.exit(Effect.flatMap(inTime(rolledOut, id, memberSeconds), wholePlayed))
      if (Exit.isFailure(exit) && Cause.hasInterruptsOnly(exit.cause)) return yield* Effect.interrupt
      const seconds = ((yield* Clock.currentTimeMillis) - startedAt) / 1000
      const base = { id, group, scenario: group, seat: "policy", member, startedAt, seconds }
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
      return failedTrajectory(base, failure, Cause.squash(exit.cause) instanceof MemberTimeout)
    })

  const jobs = scenarios.flatMap((scenario, index) =>
    Array.from({ length: groupSize }, (_, member) => play(scenario, ids[index] ?? "", member))
  )
  const trajectories = yield* Effect.all(jobs, { concurrency })
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
