/**
 * Rewards: a sum type, `Scored` or `Unscored`. Only `Scored` can reach a train request, by type; a reward that could not
 * be worked out is never turned into 0.
 */
import { Schema } from "effect"

export const Scored = Schema.TaggedStruct("Scored", {
  /** Sum of weight x term, turn rewards included. */
  total: Schema.Finite,
  /** The value of each named term, before its weight. */
  terms: Schema.Record(Schema.String, Schema.Finite)
})
export type Scored = typeof Scored.Type

/** Why a trajectory has no reward. */
export const UnscoredReason = Schema.Literals([
  "invalid_reward",
  "reward_timeout",
  "reward_error",
  "judge_failed",
  "environment_error",
  "infrastructure",
  "interrupted"
])
export type UnscoredReason = typeof UnscoredReason.Type

export const Unscored = Schema.TaggedStruct("Unscored", { reason: UnscoredReason, detail: Schema.String })
export type Unscored = typeof Unscored.Type

export const Reward = Schema.Union([Scored, Unscored])
export type Reward = typeof Reward.Type

/** A reward term that is not a finite number in its bounds. `undefined`, strings, booleans and bigints are never coerced. */
export class InvalidReward extends Schema.TaggedError<InvalidReward>()("InvalidReward", {
  trajectory: Schema.String,
  term: Schema.String,
  value: Schema.String,
  expected: Schema.String
}) {
  override get message() {
    return `Reward term "${this.term}" of ${this.trajectory} is ${this.value}; expected ${this.expected}.`
  }
}
