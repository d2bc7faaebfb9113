/**
 * One member of a hand-made group: what a rollout gave back, or why it failed, as a trajectory.
 */
import { Cause, Effect, Formatter, Schema } from "effect"
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

/** A rollout gave back something else than exchanges and a reward. */
export class NotPlayed extends Schema.TaggedError<NotPlayed>()("NotPlayed", { value: Schema.String }) {
  override get message() {
    return `The rollout gave back ${this.value}; expected an object with exchanges and a reward.`
  }
}

/** What a rollout gave back, or a failure where it is none of the kind. */
export const wholePlayed = (result: Played): Effect.Effect<Played, NotPlayed> => {
  const given: unknown = result
  const exchanges = typeof given === "object" && given !== null ? Reflect.get(given, "exchanges") : undefined
  return Array.isArray(exchanges)
    ? Effect.succeed(result)
    : Effect.fail(new NotPlayed({ value: Formatter.format(given) }))
}

/** What a hand-made rollout may give as its reward. */
const EXPECTED = "a finite number, or a non-empty record of finite numbers"

/** A reward that is no finite number leaves the member unscored; it is never coerced. */
const toReward = (trajectory: string, given: unknown): Reward => {
  const named = typeof given === "object" && given !== null && !Array.isArray(given) && Object.keys(given).length > 0
  const terms: Readonly<Record<string, unknown>> = named ? { ...given } : { reward: given }
  const finite: Record<string, number> = {}
  for (const [term, value] of Object.entries(terms)) {
    if (typeof value !== "number" || !Number.isFinite(value)) return unscored(trajectory, term, value)
    finite[term] = value
  }
  const total = Object.values(finite).reduce((sum, value) => sum + value, 0)
  return Number.isFinite(total) ? { _tag: "Scored", total, terms: finite } : unscored(trajectory, "total", total)
}

const unscored = (trajectory: string, term: string, value: unknown): Reward => {
  const error = new InvalidReward({ trajectory, term, value: Formatter.format(value), expected: EXPECTED })
  return { _tag: "Unscored", reason: "invalid_reward", detail: error.message }
}

/** The trajectory of a rollout that threw, or took too long: it has no reward. */
export const failedTrajectory = (base: MemberBase, failure: Failure, timedOut: boolean): Trajectory => ({
  ...base,
  exchanges: [],
  stopReason: timedOut ? "timeout" : failure.kind === "infrastructure" ? "infrastructure" : "environment_error",
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
    tag === "LostExchange" ||
    [APIConnectionError, InternalServerError, RateLimitError].some((kind) => error instanceof kind)
  return {
    kind: infrastructure ? "infrastructure" : "environment",
    message: error instanceof Error ? error.message : String(error),
    ...(error instanceof Error && error.stack !== undefined ? { stack: error.stack } : {})
  }
}
