/**
 * Evaluation: several policies side by side on the same scenarios, by default the held-out ones. Nothing is trained.
 */
import { batchFigures, type Group, type Policy, standardDeviation } from "@ludus/core"
import { Effect } from "effect"
import { type InvalidEnvironment, takeScenario } from "./check-declaration.ts"
import type { Any, Requirements } from "./environment.ts"
import { seatsOf } from "./episode.ts"
import { rollOut } from "./rollout.ts"
import type { Split } from "./scenario.ts"
import * as Waits from "./waits.ts"
import * as Watchdog from "./watchdog.ts"

export interface EvaluateOptions {
  /** Default `held-out`. */
  readonly split?: Split
  /** How many scenarios; default 64, fewer if the split is smaller. */
  readonly scenarios?: number
  /** Episodes of each scenario. Default 1. */
  readonly episodes?: number
  /** Default 1; 0 is greedy. */
  readonly temperature?: number
  /** Seeds the sampling draws. Default 0. */
  readonly seed?: number
  /** Episodes at the same time. Default 64. */
  readonly concurrency?: number
  /** The seat that is looked at. Default: the first. */
  readonly seat?: string
  /** Who plays the other seats. Default: the policy itself. */
  readonly opponents?: Readonly<Record<string, Policy.Policy>>
  /** Names the batch in episode ids. Default `evaluation`. */
  readonly batch?: string
}

export interface Evaluation {
  readonly policy: string
  readonly temperature: number
  /** Mean reward over the episodes that have one, and its standard error. */
  readonly reward: number
  readonly standardError: number
  /** `reward`, `reward_std`, `episodes`, `unscored`, `truncated`, `stop/<reason>`, `term/<name>` and the episodes' metrics. */
  readonly figures: Readonly<Record<string, number>>
  readonly groups: ReadonlyArray<Group>
}

/** One row per policy, in the order given. */
export const evaluateEnvironment = <E extends Any>(
  environment: E,
  policies: ReadonlyArray<Policy.Policy>,
  options?: EvaluateOptions
): Effect.Effect<ReadonlyArray<Evaluation>, InvalidEnvironment, Requirements<E>> =>
  Effect.gen(function* () {
    const split = options?.split ?? "held-out"
    const count = Math.min(options?.scenarios ?? 64, environment.behaviour.scenarios.size(split))
    const seed = options?.seed ?? 0
    const scenarios = yield* Effect.forEach(
      Array.from({ length: count }, (_, index) => index),
      (index) => takeScenario(environment, split, index, seed)
    )
    const seat = options?.seat ?? seatsOf(environment)[0] ?? "player"
    const temperature = options?.temperature ?? 1
    const watchdog = yield* Effect.acquireRelease(
      Effect.sync(() => Watchdog.start()),
      (started) => Effect.sync(started.stop)
    )
    return yield* Effect.forEach(policies, (policy) =>
      Effect.map(
        rollOut(environment, {
          batch: `${options?.batch ?? "evaluation"}-${policy.name}-t${temperature}`,
          scenarios,
          groupSize: options?.episodes ?? 1,
          policies: () => ({
            ...Object.fromEntries(seatsOf(environment).map((name) => [name, policy])),
            ...options?.opponents,
            [seat]: policy
          }),
          trainedSeats: [],
          temperature,
          seed,
          concurrency: options?.concurrency ?? 64,
          watchdog,
          waits: Waits.make(),
          onEpisode: () => Effect.void
        }),
        (groups) =>
          toEvaluation(
            policy.name,
            temperature,
            groups.filter((group) => group.seat === seat)
          )
      )
    )
  }).pipe(Effect.scoped)

const toEvaluation = (policy: string, temperature: number, groups: ReadonlyArray<Group>): Evaluation => {
  const trajectories = groups.flatMap((group) => group.trajectories)
  const rewards = trajectories.flatMap(({ reward }) => (reward._tag === "Scored" ? [reward.total] : []))
  const figures = batchFigures("val", trajectories)
  return {
    policy,
    temperature,
    reward: figures["val/reward"] ?? Number.NaN,
    // the standard error of a mean of n: sample deviation / sqrt(n) = population deviation / sqrt(n - 1)
    standardError: rewards.length < 2 ? Number.NaN : standardDeviation(rewards) / Math.sqrt(rewards.length - 1),
    figures: Object.fromEntries(Object.entries(figures).map(([name, value]) => [name.slice("val/".length), value])),
    groups
  }
}
