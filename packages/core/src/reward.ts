/**
 * Reward terms: what an environment declares. Their values and the total are in `reward-value.ts` and are exported from
 * here too, so that `Reward` is one namespace.
 */
import type { Effect } from "effect"
import type { Group } from "./group.ts"
import type { Unscored } from "./reward-value.ts"

export { InvalidReward, Reward, Scored, Unscored, UnscoredReason } from "./reward-value.ts"

interface Bounds {
  readonly minimum: number
  readonly maximum: number
  /** Multiplies the term in the total; 0 makes it a metric only. */
  readonly weight: number
}

/** A term of the whole episode. */
export interface Term extends Bounds {
  readonly kind: "episode"
}

/** A term of each turn: the sum of `discount^k` times its value at turn k is a part of the trajectory's reward. */
export interface TurnTerm extends Bounds {
  readonly kind: "turn"
  readonly discount: number
}

/** A term that looks at the whole group: one value per trajectory, in order, or a reason why there is none. */
export interface GroupTerm<R> extends Bounds {
  readonly kind: "group"
  readonly score: (group: Group) => Effect.Effect<ReadonlyArray<number> | Unscored, unknown, R>
}

// oxlint-disable-next-line no-explicit-any -- any requirements
export type AnyTerm = Term | TurnTerm | GroupTerm<any>

const bounds = (minimum: number, maximum: number, options: { readonly weight?: number } | undefined): Bounds => {
  if (!(minimum < maximum) || !Number.isFinite(minimum) || !Number.isFinite(maximum)) {
    throw new RangeError(`Reward bounds must be finite with minimum < maximum, got [${minimum}, ${maximum}]`)
  }
  const weight = options?.weight ?? 1
  if (!Number.isFinite(weight)) throw new RangeError(`A reward's weight must be a finite number, got ${weight}`)
  return { minimum, maximum, weight }
}

/** An episode term whose value lies in `[minimum, maximum]`; `weight` multiplies it in the total (default 1). */
export const between = (minimum: number, maximum: number, options?: { readonly weight?: number }): Term => ({
  kind: "episode",
  ...bounds(minimum, maximum, options)
})

/** A turn term whose value lies in `[minimum, maximum]` at every turn; `discount` (default 1) is per turn of the seat. */
export const perTurn = (
  minimum: number,
  maximum: number,
  options?: { readonly weight?: number; readonly discount?: number }
): TurnTerm => {
  const discount = options?.discount ?? 1
  if (!(discount >= 0 && discount <= 1)) throw new RangeError(`A discount lies in [0, 1], got ${discount}`)
  return { kind: "turn", ...bounds(minimum, maximum, options), discount }
}

/** A group term: `score` sees all trajectories of a group and gives each a value in `[minimum, maximum]`. */
export const group = <R = never>(
  minimum: number,
  maximum: number,
  options: { readonly weight?: number; readonly score: GroupTerm<R>["score"] }
): GroupTerm<R> => ({ kind: "group", ...bounds(minimum, maximum, options), score: options.score })
