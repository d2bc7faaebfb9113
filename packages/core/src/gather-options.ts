/**
 * Options of a gathering, their defaults, and what is refused before the first rollout starts.
 */
import { Effect, Formatter, Schema } from "effect"
import { badOption } from "./check-options.ts"

export interface GatherOptions<S> {
  /** Rollouts at a time. Default 16. */
  readonly concurrency?: number | undefined
  /** Above this the gathering stops: a share of all members (below 1), or a number of them. Default 0.25. */
  readonly maxExceptions?: number | undefined
  /** A rollout that takes longer is stopped, and its member has no reward. Default 600. */
  readonly memberSeconds?: number | undefined
  /** Identity of a scenario's group. Default: its `id`, else its place in the list. */
  readonly scenarioId?: ((scenario: S, index: number) => string) | undefined
  /** Part of ids and seeds. Default 0. */
  readonly iteration?: number | undefined
  /** Default 0. */
  readonly seed?: number | undefined
}

const Checked = Schema.Struct({
  concurrency: Schema.optional(Schema.Int.check(Schema.isGreaterThanOrEqualTo(1))),
  maxExceptions: Schema.optional(Schema.Number.check(Schema.isGreaterThanOrEqualTo(0))),
  memberSeconds: Schema.optional(Schema.Finite.check(Schema.isGreaterThan(0))),
  scenarioId: Schema.optional(
    Schema.declare((given): given is (...given: never) => string => typeof given === "function", {
      expected: "a function of the scenario and its place"
    })
  ),
  iteration: Schema.optional(Schema.Natural),
  seed: Schema.optional(Schema.Int)
})

/** The gathering cannot start as it was asked for. */
export class InvalidGathering extends Schema.TaggedError<InvalidGathering>()("InvalidGathering", {
  field: Schema.String,
  value: Schema.String,
  expected: Schema.String,
  advice: Schema.String
}) {
  override get message() {
    return `${this.field} is ${this.value}; expected ${this.expected}. ${this.advice}`
  }
}

/** Options with their defaults. */
export const resolveGathering = <S>(given: GatherOptions<S>) => {
  const bad = badOption(Checked, given)
  return bad === undefined
    ? Effect.succeed({
        concurrency: given.concurrency ?? 16,
        maxExceptions: given.maxExceptions ?? 0.25,
        memberSeconds: given.memberSeconds ?? 600,
        scenarioId: given.scenarioId ?? defaultId,
        iteration: given.iteration ?? 0,
        seed: given.seed ?? 0
      })
    : Effect.fail(new InvalidGathering({ ...bad, advice: "Correct the option. Nothing was played." }))
}

const defaultId = (scenario: unknown, index: number): string => {
  const id = typeof scenario === "object" && scenario !== null && "id" in scenario ? scenario.id : undefined
  return typeof id === "string" || typeof id === "number" ? String(id) : String(index)
}

/** Refuses groups that cannot be compared inside. */
export const checkGroups = (ids: ReadonlyArray<string>, groupSize: number): Effect.Effect<void, InvalidGathering> => {
  if (!Number.isInteger(groupSize) || groupSize < 2) {
    return Effect.fail(
      new InvalidGathering({
        field: "groupSize",
        value: Formatter.format(groupSize),
        expected: "a whole number of at least 2",
        advice: "Rewards are compared inside a group: a group of one teaches nothing."
      })
    )
  }
  const twice = ids.find((id, index) => ids.indexOf(id) !== index)
  return twice === undefined
    ? Effect.void
    : Effect.fail(
        new InvalidGathering({
          field: "scenarios",
          value: `two with the id "${twice}"`,
          expected: "each scenario id once",
          advice: "Give the scenarios ids of their own, or pass scenarioId."
        })
      )
}
