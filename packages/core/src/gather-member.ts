/**
 * One member of a hand-made group: what a rollout gave back, or why it failed, as a trajectory.
 */
import { Formatter, Cause } from "effect"
import { APIConnectionError, InternalServerError, RateLimitError } from "openai"
import type { Exchange } from "./exchange.ts"
import { InvalidReward, type Reward } from "./reward.ts"
import type { StopReason } from "./stop-reason.ts"
import type { Failure, Trajectory } from "./trajectory.ts"

/** What a rollout gives back. */
export interface Played {
  readonly exchanges: ReadonlyArray<Exchange>
  /** One number, or named terms that are summed. */
  readonly reward: number | Readonly<Record<string, number>>
  readonly metrics?: Readonly<Record<string, number>>
  /** Default `completed`. */
  readonly stopReason?: StopReason
}

/** Who a member is, and when it was played. */
export type MemberBase = Pick<Trajectory, "id" | "group" | "scenario" | "seat" | "member" | "startedAt" | "seconds">

/** The trajectory of a rollout that ended by itself. */
export const played = (base: MemberBase, result: Played): Trajectory => ({
  ...base,
  exchanges: [...result.exchanges],
  stopReason: result.stopReason ?? "completed",
  truncated: result.exchanges.some(({ finishReason }) => finishReason === "length"),
  metrics: { ...result.metrics },
  reward: toReward(base.id, result.reward)
})

/** A reward that is no finite number, or no terms with one each, leaves the member unscored; it is never coerced. */
const toReward = (trajectory: string, given: Played["reward"]): Reward => {
  const refuse = (term: string, value: unknown, expected: string): Reward => {
    const error = new InvalidReward({ trajectory, term, value: Formatter.format(value), expected })
    return { _tag: "Unscored", reason: "invalid_reward", detail: error.message }
  }
  const terms: Readonly<Record<string, unknown>> =
    typeof given === "object" && given !== null && !Array.isArray(given) ? given : { reward: given }
  const entries = Object.entries(terms)
  if (entries.length === 0) return refuse("reward", given, "a finite number, or named terms with one each")
  const bad = entries.find(([, value]) => !Number.isFinite(value))
  if (bad !== undefined) return refuse(bad[0], bad[1], "a finite number")
  const scored = terms as Readonly<Record<string, number>>
  return { _tag: "Scored", total: Object.values(scored).reduce((sum, value) => sum + value, 0), terms: { ...scored } }
}

/** The trajectory of a rollout that threw: it has no reward. */
export const failedTrajectory = (base: MemberBase, failure: Failure): Trajectory => ({
  ...base,
  exchanges: [],
  stopReason: failure.kind === "infrastructure" ? "infrastructure" : "environment_error",
  truncated: false,
  metrics: {},
  failure,
  reward: {
    _tag: "Unscored",
    reason: failure.kind === "infrastructure" ? "infrastructure" : "environment_error",
    detail: failure.message
  }
})

/** The root cause: wrappers that Effect puts around a rejected promise are taken off. */
export const toFailure = (cause: Cause.Cause<unknown>): Failure => {
  let error = Cause.squash(cause)
  while (Cause.isUnknownError(error) && error.cause !== undefined) error = error.cause
  const tag = typeof error === "object" && error !== null && "_tag" in error ? error._tag : undefined
  const infrastructure =
    tag === "PolicyFailure" ||
    tag === "BackendError" ||
    [APIConnectionError, InternalServerError, RateLimitError].some((kind) => error instanceof kind)
  return {
    kind: infrastructure ? "infrastructure" : "environment",
    message: error instanceof Error ? error.message : String(error),
    ...(error instanceof Error && error.stack !== undefined ? { stack: error.stack } : {})
  }
}
