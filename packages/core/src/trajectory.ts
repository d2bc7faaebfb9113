/**
 * A trajectory is what one seat did in one episode. It always exists, whatever happened: a failure is data with a stop
 * reason, not a missing row.
 */
import { Schema } from "effect"
import { Exchange } from "./exchange.ts"
import { Reward, Scored } from "./reward-value.ts"
import { StopReason } from "./stop-reason.ts"

/** Whose fault a failure was; each kind has a budget of its own. */
export const FailureKind = Schema.Literals(["environment", "infrastructure", "reward", "judge"])
export type FailureKind = typeof FailureKind.Type

export const Failure = Schema.Struct({
  kind: FailureKind,
  message: Schema.String,
  stack: Schema.optionalKey(Schema.String)
})
export type Failure = typeof Failure.Type

const fields = {
  /** `iteration/scenario/member/seat`, unique in a run. */
  id: Schema.String,
  /** Group identity: scenario and seat (and opponent assignment), carried explicitly. */
  group: Schema.String,
  scenario: Schema.String,
  seat: Schema.String,
  /** 0 .. groupSize - 1 */
  member: Schema.Natural,
  exchanges: Schema.Array(Exchange),
  stopReason: StopReason,
  /** A reply of this trajectory was cut by its token limit and its action did not decode. */
  truncated: Schema.Boolean,
  /** Numbers of the episode beside the reward: turns, tokens, what the environment reports. Averaged per iteration. */
  metrics: Schema.Record(Schema.String, Schema.Finite),
  /** Set where something failed; the message and the stack of the root cause. */
  failure: Schema.optionalKey(Failure),
  /** Milliseconds since the epoch. */
  startedAt: Schema.Finite,
  seconds: Schema.Finite
}

export const Trajectory = Schema.Struct({ ...fields, reward: Reward })
export type Trajectory = typeof Trajectory.Type

/** A trajectory with a reward: the only kind that can be trained. */
export const ScoredTrajectory = Schema.Struct({ ...fields, reward: Scored })
export type ScoredTrajectory = typeof ScoredTrajectory.Type

export const isScored = (trajectory: Trajectory): trajectory is ScoredTrajectory => trajectory.reward._tag === "Scored"
