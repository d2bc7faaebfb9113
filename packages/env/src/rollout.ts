/**
 * Rollouts of one iteration: `groupSize` episodes of each scenario from the same seeded start, with bounded concurrency.
 * A member that fails never takes its siblings along; a group is scored by its group terms as soon as it is complete.
 */
import { type Group, type Policy, Reward, Seed, type Trajectory } from "@ludus/core"
import { Effect, Result, Schema, Semaphore } from "effect"
import type { Any, Requirements } from "./environment.ts"
import { type EpisodeOptions, runEpisode, seatsOf } from "./episode.ts"
import { resolveLimits } from "./limits.ts"
import type { ScenarioInstance } from "./scenario.ts"
import { checkValue, total } from "./score.ts"
import { callUser, wrongValue } from "./user-code.ts"
import type { Waits } from "./waits.ts"
import type { Watchdog } from "./watchdog.ts"

export interface RolloutOptions<OE = never> {
  /** Names the batch in episode ids: the iteration, or `evaluation-12`. */
  readonly batch: string
  readonly scenarios: ReadonlyArray<ScenarioInstance<unknown>>
  readonly groupSize: number
  /** Which policy plays each seat of a scenario; drawn once a group. */
  readonly policies: (scenario: ScenarioInstance<unknown>) => Readonly<Record<string, Policy.Policy>>
  readonly trainedSeats: ReadonlyArray<string>
  readonly temperature: number
  /** The run's seed. */
  readonly seed: number
  /** Episodes at the same time. */
  readonly concurrency: number
  readonly watchdog: Watchdog
  readonly waits: Waits
  /** Episodes that an earlier session of the run has finished: they are not played again. */
  readonly finished?: ReadonlyMap<string, ReadonlyArray<Trajectory>>
  /** Called once for each finished episode, in the order in which they finish; not for those in `finished`. */
  readonly onEpisode: (episode: string, trajectories: ReadonlyArray<Trajectory>) => Effect.Effect<void, OE>
}

/** One group per scenario and seat, in the order of the scenarios. */
export const rollOut = <E extends Any, OE = never>(
  environment: E,
  options: RolloutOptions<OE>
): Effect.Effect<ReadonlyArray<Group>, OE, Requirements<E>> =>
  Effect.gen(function* () {
    const permits = yield* Semaphore.make(options.concurrency)
    const groups = yield* Effect.forEach(
      options.scenarios,
      (scenario) =>
        Effect.gen(function* () {
          const policies = options.policies(scenario)
          const members = yield* Effect.forEach(
            Array.from({ length: options.groupSize }, (_, member) => member),
            (member) =>
              playOnce(environment, options, permits, {
                id: `${options.batch}/${scenario.id}/${member}`,
                batch: options.batch,
                scenario,
                member,
                policies,
                trainedSeats: options.trainedSeats,
                temperature: options.temperature,
                samplingSeed: Seed.derive(options.seed, options.batch, scenario.id, member),
                watchdog: options.watchdog,
                waits: options.waits
              }),
            { concurrency: "unbounded" }
          )
          return yield* Effect.forEach(seatsOf(environment), (seat) =>
            scoreGroup(environment, options, {
              id: `${options.batch}/${scenario.id}/${seat}`,
              scenario: scenario.id,
              seat,
              trajectories: members.flatMap((trajectories) =>
                trajectories.filter((trajectory) => trajectory.seat === seat)
              )
            })
          )
        }),
      { concurrency: "unbounded" }
    )
    return groups.flat()
  })

const playOnce = <OE>(
  environment: Any,
  options: RolloutOptions<OE>,
  permits: Semaphore.Semaphore,
  episode: EpisodeOptions
) => {
  const finished = options.finished?.get(episode.id)
  if (finished !== undefined) return Effect.succeed(finished)
  return runEpisode(environment, episode).pipe(
    permits.withPermits(1),
    Effect.tap((trajectories) => options.onEpisode(episode.id, trajectories))
  )
}

/** Adds the values of the group terms to the members that have a reward. A failing judge leaves the group unscored. */
const scoreGroup = Effect.fnUntraced(function* <OE>(environment: Any, options: RolloutOptions<OE>, group: Group) {
  const terms: Readonly<Record<string, Reward.AnyTerm>> = environment.spec.rewards
  let scored = group
  for (const [name, term] of Object.entries(terms)) {
    if (term.kind !== "group") continue
    const judged = scored.trajectories.filter((trajectory) => trajectory.reward._tag === "Scored")
    if (judged.length === 0) continue
    const values = yield* judge(environment, options, name, term, { ...scored, trajectories: judged })
    scored = { ...scored, trajectories: addGroupTerm(scored.trajectories, terms, name, term, values) }
  }
  return scored
})

/** The values of one group term, one per member, or why there are none. */
const judge = <OE>(
  environment: Any,
  options: RolloutOptions<OE>,
  name: string,
  term: Reward.AnyTerm & { readonly kind: "group" },
  group: Group
): Effect.Effect<ReadonlyArray<unknown> | Reward.Unscored> => {
  const where = `group term "${name}" of environment "${environment.id}" (group ${group.id})`
  options.watchdog.enter(where)
  const asked = callUser<unknown, never>(where, resolveLimits(environment.spec.limits).rewardSeconds, () =>
    term.score(group)
  ).pipe(
    Effect.flatMap((values) =>
      isUnscored(values) || (Array.isArray(values) && values.length === group.trajectories.length)
        ? Effect.succeed(values)
        : Effect.fail(wrongValue(where, values, `${group.trajectories.length} numbers, one per member`))
    ),
    Effect.catch((failure) =>
      Effect.succeed(Reward.Unscored.make({ reason: "judge_failed", detail: `${name}: ${failure.message}` }))
    )
  )
  return options.waits.during(group.id, 0, where, asked)
}

const isUnscored = Schema.is(Reward.Unscored)

const addGroupTerm = (
  trajectories: ReadonlyArray<Trajectory>,
  terms: Readonly<Record<string, Reward.AnyTerm>>,
  name: string,
  term: Reward.AnyTerm,
  values: ReadonlyArray<unknown> | Reward.Unscored
): ReadonlyArray<Trajectory> => {
  let position = 0
  return trajectories.map((trajectory) => {
    if (trajectory.reward._tag === "Unscored") return trajectory
    if ("_tag" in values) return { ...trajectory, reward: values }
    const checked = checkValue(trajectory.id, name, term, values[position++])
    if (Result.isFailure(checked)) {
      return {
        ...trajectory,
        failure: { kind: "reward" as const, message: checked.failure.message },
        reward: Reward.Unscored.make({ reason: "invalid_reward", detail: checked.failure.message })
      }
    }
    const all = { ...trajectory.reward.terms, [name]: checked.success }
    return { ...trajectory, reward: Reward.Scored.make({ total: total(terms, all), terms: all }) }
  })
}
