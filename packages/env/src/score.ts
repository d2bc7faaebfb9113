/**
 * From term values to a reward: every value is checked against its bounds, nothing is coerced, clamped or filled in.
 */
import { Reward } from "@ludus/core"
import { Result } from "effect"
import { show } from "./user-code.ts"

/** Checks one value of one term. */
export const checkValue = (
  trajectory: string,
  name: string,
  term: Reward.AnyTerm,
  value: unknown
): Result.Result<number, Reward.InvalidReward> =>
  typeof value === "number" && value >= term.minimum && value <= term.maximum
    ? Result.succeed(value)
    : Result.fail(
        new Reward.InvalidReward({
          trajectory,
          term: name,
          value: show(value),
          expected: `a number in [${term.minimum}, ${term.maximum}]`
        })
      )

/** Checks that `values` holds every declared term of one kind, and no other name. */
export const checkValues = (
  trajectory: string,
  terms: Readonly<Record<string, Reward.AnyTerm>>,
  kind: Reward.AnyTerm["kind"],
  values: unknown
): Result.Result<Record<string, number>, Reward.InvalidReward> => {
  const declared = Object.entries(terms).filter(([, term]) => term.kind === kind)
  const given = typeof values === "object" && values !== null ? (values as Readonly<Record<string, unknown>>) : {}
  const out: Record<string, number> = {}
  for (const [name, term] of declared) {
    const checked = checkValue(trajectory, name, term, given[name])
    if (Result.isFailure(checked)) return Result.fail(checked.failure)
    out[name] = checked.success
  }
  for (const name of Object.keys(given)) {
    if (!Object.hasOwn(out, name)) {
      return Result.fail(
        new Reward.InvalidReward({
          trajectory,
          term: name,
          value: show(given[name]),
          expected: `one of the declared terms: ${declared.map(([known]) => known).join(", ") || "none"}`
        })
      )
    }
  }
  return Result.succeed(out)
}

/** Sum of weight x term. */
export const total = (
  terms: Readonly<Record<string, Reward.AnyTerm>>,
  values: Readonly<Record<string, number>>
): number => Object.entries(values).reduce((sum, [name, value]) => sum + (terms[name]?.weight ?? 0) * value, 0)

/** The totals that full marks and no marks would give, for naming the cause of a group without variance. */
export const totalBounds = (
  terms: Readonly<Record<string, Reward.AnyTerm>>
): { readonly solved: number; readonly failed: number } | undefined => {
  const all = Object.values(terms)
  if (all.some((term) => term.kind === "turn")) return undefined
  const extreme = (pick: (a: number, b: number) => number) =>
    all.reduce((sum, term) => sum + pick(term.weight * term.minimum, term.weight * term.maximum), 0)
  return { solved: extreme(Math.max), failed: extreme(Math.min) }
}
