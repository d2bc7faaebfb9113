/**
 * A group: trajectories of one scenario and one seat from the same start state. Rewards are compared inside it.
 */
import { Schema } from "effect"
import { isScored, type ScoredTrajectory, Trajectory } from "./trajectory.ts"

export const Group = Schema.Struct({
  id: Schema.String,
  scenario: Schema.String,
  seat: Schema.String,
  trajectories: Schema.Array(Trajectory)
})
export type Group = typeof Group.Type

/** Why a group carries no signal. */
export const DropCause = Schema.Literals([
  "all_solved",
  "all_failed",
  "all_truncated",
  "all_invalid",
  "all_equal",
  "too_few_scored"
])
export type DropCause = typeof DropCause.Type

/** A group that the trainer can read: scored members only, with the cause if it carries no signal. */
export interface ScoredGroup {
  readonly id: string
  readonly trajectories: ReadonlyArray<ScoredTrajectory>
  readonly dropped: DropCause | undefined
}

/** Rewards closer than this are equal (the tolerance that ART uses for its zero-variance test). */
const EQUAL = 1e-12

/**
 * Keeps the scored members and names the cause where they carry no signal.
 *
 * `solved` is the largest total that the environment's terms allow, `failed` the smallest, where they are known.
 */
export const toScoredGroup = (
  group: Group,
  bounds?: { readonly solved: number; readonly failed: number }
): ScoredGroup => {
  const trajectories = group.trajectories.filter(isScored)
  return { id: group.id, trajectories, dropped: dropCause(trajectories, bounds) }
}

const dropCause = (
  trajectories: ReadonlyArray<ScoredTrajectory>,
  bounds: { readonly solved: number; readonly failed: number } | undefined
): DropCause | undefined => {
  const first = trajectories[0]
  if (first === undefined || trajectories.length < 2) return "too_few_scored"
  const reward = first.reward.total
  if (trajectories.some((t) => Math.abs(t.reward.total - reward) > EQUAL)) return undefined
  if (trajectories.every((t) => t.truncated)) return "all_truncated"
  if (trajectories.every((t) => t.stopReason === "invalid_action")) return "all_invalid"
  if (bounds !== undefined && Math.abs(reward - bounds.solved) <= 1e-9) return "all_solved"
  if (bounds !== undefined && Math.abs(reward - bounds.failed) <= 1e-9) return "all_failed"
  return "all_equal"
}
