/**
 * What can be known about an environment before anything expensive starts: that its schemas round-trip, that its first
 * scenarios start, and that its limits make sense.
 */
import { Seed } from "@ludus/core"
import { Effect, Equal, Schema, type Scope } from "effect"
import type { Any, Requirements } from "./environment.ts"
import { resolveLimits } from "./limits.ts"
import type { ScenarioInstance, Split } from "./scenario.ts"
import { callUser, inOwnScope, show } from "./user-code.ts"

/** A mistake in an environment's declaration: which field, its value, what was expected, what to do. */
export class InvalidEnvironment extends Schema.TaggedError<InvalidEnvironment>()("InvalidEnvironment", {
  environment: Schema.String,
  field: Schema.String,
  value: Schema.String,
  expected: Schema.String,
  advice: Schema.String
}) {
  override get message() {
    return `Environment "${this.environment}": ${this.field} is ${this.value}; expected ${this.expected}. ${this.advice}`
  }
}

const shown = (value: unknown): string => {
  const text = JSON.stringify(value) ?? String(value)
  return text.length > 300 ? `${text.slice(0, 297)}...` : text
}

/** Checks limits, then the first `count` scenarios of the training split and their start states. */
export const checkDeclaration = <E extends Any>(
  environment: E,
  options: { readonly seed: number; readonly count?: number }
): Effect.Effect<void, InvalidEnvironment, Requirements<E>> =>
  Effect.gen(function* () {
    yield* checkLimits(environment)
    if (Object.keys(environment.spec.rewards).length === 0) {
      return yield* invalid(
        environment,
        "rewards",
        "{}",
        "at least one reward term",
        "Declare one, for example { solved: Reward.between(0, 1) }."
      )
    }
    const available = environment.behaviour.scenarios.size("train")
    if (available < 1) {
      return yield* invalid(
        environment,
        "scenarios",
        "an empty training split",
        "at least one scenario",
        "Add scenarios, or fewer held-out ones."
      )
    }
    for (let index = 0; index < Math.min(options.count ?? 4, available); index++) {
      const scenario = yield* takeScenario(environment, "train", index, options.seed)
      yield* roundTrip(environment, `scenario ${scenario.id}`, environment.spec.scenario, scenario.input)
      const state = yield* startState(environment, scenario)
      yield* roundTrip(environment, `state at the start of ${scenario.id}`, environment.spec.state, state)
    }
  }) as Effect.Effect<void, InvalidEnvironment, Requirements<E>>

/** What `Environment.Class` makes, looked at from plain JavaScript. */
export const isEnvironment = (value: unknown): value is Any =>
  typeof value === "function" &&
  "id" in value &&
  typeof value.id === "string" &&
  "spec" in value &&
  typeof value.spec === "object" &&
  "behaviour" in value &&
  typeof value.behaviour === "object"

export const invalid = (
  environment: Any,
  field: string,
  value: string,
  expected: string,
  advice = "Correct the declaration; nothing was trained."
) => new InvalidEnvironment({ environment: environment.id, field, value, expected, advice })

/** The scenario at a place; a throw in the user's generator is a mistake of the declaration. */
export const takeScenario = (
  environment: Any,
  split: Split,
  index: number,
  seed: number
): Effect.Effect<ScenarioInstance<unknown>, InvalidEnvironment> =>
  Effect.try({
    try: () => environment.behaviour.scenarios.at(split, index, seed) as ScenarioInstance<unknown>,
    catch: (thrown) =>
      invalid(
        environment,
        `scenarios (${split}, ${index})`,
        String(thrown),
        "a scenario",
        "Mend the function given to Scenario.generate."
      )
  })

const checkLimits = Effect.fnUntraced(function* (environment: Any) {
  for (const [name, value] of Object.entries(resolveLimits(environment.spec.limits))) {
    const whole = name === "turns" || name.startsWith("tokens") || name === "invalidReplies"
    const minimum = name === "invalidReplies" ? 0 : whole ? 1 : Number.MIN_VALUE
    if (typeof value !== "number" || !(value >= minimum) || (whole && !Number.isInteger(value))) {
      return yield* invalid(
        environment,
        `limits.${name}`,
        shown(value),
        whole ? `a whole number of at least ${minimum}` : "a number above 0",
        "Correct the limit."
      )
    }
  }
})

const startState = (environment: Any, scenario: ScenarioInstance<unknown>) => {
  const seconds = resolveLimits(environment.spec.limits).environmentSeconds
  const play = callUser<unknown, Scope.Scope>(`"start" of environment "${environment.id}"`, seconds, () =>
    environment.behaviour.start(scenario.input, { random: Seed.stream(scenario.seed, "environment") })
  )
  const provided = environment.perEpisode === undefined ? play : Effect.provide(play, environment.perEpisode as never)
  return inOwnScope(
    `finalizers of environment "${environment.id}"`,
    seconds,
    provided as Effect.Effect<unknown, { readonly message: string }, Scope.Scope>
  ).pipe(
    Effect.catchDefect((defect) => Effect.fail({ message: defect instanceof Error ? defect.message : show(defect) })),
    Effect.mapError((failure) =>
      invalid(environment, `start of ${scenario.id}`, failure.message, "a state", 'Mend "start"; nothing was trained.')
    )
  )
}

/** Encodes and decodes a value and compares: what is lost here would be lost in the journal. */
const roundTrip = Effect.fnUntraced(function* (
  environment: Any,
  field: string,
  schema: Schema.Codec<unknown, unknown>,
  value: unknown
) {
  const advice =
    "Every field must be part of the Schema and survive JSON; no functions, dates or class instances outside it."
  const back = yield* Effect.gen(function* () {
    const encoded = yield* Schema.encodeUnknownEffect(schema)(value)
    return yield* Schema.decodeUnknownEffect(schema)(JSON.parse(JSON.stringify(encoded)))
  }).pipe(
    Effect.mapError((error) =>
      invalid(environment, field, shown(value), `what its Schema describes (${error.message})`, advice)
    )
  )
  // as JSON too: an optional field that is undefined and one that is missing are the same there
  if (!Equal.equals(back, value) && JSON.stringify(back) !== JSON.stringify(value)) {
    return yield* invalid(
      environment,
      field,
      shown(value),
      `the same value after encoding and decoding, not ${shown(back)}`,
      advice
    )
  }
})
