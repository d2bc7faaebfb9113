/**
 * Figures of a batch of trajectories: means over the episodes that have a reward, with counts of what did not.
 */
import type { ScoredGroup } from "./group.ts"
import type { Trajectory } from "./trajectory.ts"

/** Mean; NaN of nothing. */
export const mean = (values: ReadonlyArray<number>): number =>
  values.reduce((sum, value) => sum + value, 0) / values.length

/** Population standard deviation; 0 of fewer than two. */
export const standardDeviation = (values: ReadonlyArray<number>): number => {
  if (values.length < 2) return 0
  const center = mean(values)
  return Math.sqrt(mean(values.map((value) => (value - center) ** 2)))
}

/** Means of every named figure over the rows that have it. */
export const meansOf = (rows: ReadonlyArray<Readonly<Record<string, number>>>): Record<string, number> => {
  const columns: Record<string, Array<number>> = {}
  for (const row of rows) for (const [name, value] of Object.entries(row)) (columns[name] ??= []).push(value)
  return Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, mean(values)]))
}

const prefixed = (prefix: string, figures: Readonly<Record<string, number>>) =>
  Object.fromEntries(Object.entries(figures).map(([name, value]) => [`${prefix}/${name}`, value]))

const OWN_FIGURES = new Set([
  "reward",
  "reward_std",
  "episodes",
  "unscored",
  "truncated",
  "turns",
  "sampled_tokens",
  "unparsed_replies",
  "illegal_actions"
])

/** Whether a name is one of the loop's own: a metric of an environment needs another one. */
export const isOwnFigure = (name: string): boolean => OWN_FIGURES.has(name) || /^(stop|term)\//u.test(name)

/**
 * `<split>/reward`, `reward_std`, `episodes`, `unscored`, `truncated`, `stop/<reason>` (shares), `term/<name>` and the
 * episodes' own metrics.
 */
export const batchFigures = (split: string, trajectories: ReadonlyArray<Trajectory>): Record<string, number> => {
  const scored = trajectories.flatMap(({ reward }) => (reward._tag === "Scored" ? [reward] : []))
  const rewards = scored.map((reward) => reward.total)
  const stops: Record<string, number> = {}
  for (const { stopReason } of trajectories) {
    stops[`stop/${stopReason}`] = (stops[`stop/${stopReason}`] ?? 0) + 1 / trajectories.length
  }
  return prefixed(split, {
    reward: mean(rewards),
    reward_std: standardDeviation(rewards),
    episodes: trajectories.length,
    unscored: trajectories.length - rewards.length,
    truncated: mean(trajectories.map((trajectory) => Number(trajectory.truncated))),
    ...stops,
    ...prefixed("term", meansOf(scored.map((reward) => reward.terms))),
    ...meansOf(trajectories.map((trajectory) => trajectory.metrics))
  })
}

/** `groups/total`, `groups/trained`, and `groups/<cause>` for those without signal. */
export const groupFigures = (groups: ReadonlyArray<ScoredGroup>): Record<string, number> => {
  const causes: Record<string, number> = {}
  for (const { dropped } of groups) if (dropped !== undefined) causes[dropped] = (causes[dropped] ?? 0) + 1
  return prefixed("groups", {
    total: groups.length,
    trained: groups.filter((group) => group.dropped === undefined).length,
    ...causes
  })
}
