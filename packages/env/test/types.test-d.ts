/**
 * A user's mistakes in a declaration fail to compile, on the user's own line.
 */
import { type BackendProvider, Reward } from "@ludus/core"
import { Action, Environment, Scenario, trainEnvironment } from "@ludus/env"
import { Context, Effect, Layer, Schema } from "effect"
import { describe, expectTypeOf, it } from "vitest"
import { GuessNumber } from "./fixtures/guess-number.ts"

class Mailbox extends Context.Service<Mailbox, { readonly count: Effect.Effect<number> }>()("test/Mailbox") {}

const declare = Environment.Class("game", {
  scenario: Schema.Struct({ secret: Schema.Int }),
  state: Schema.Struct({ tries: Schema.Int, hint: Schema.Literals(["low", "high"]) }),
  action: Action.tag("guess", Schema.NumberFromString),
  rewards: { solved: Reward.between(0, 1), steps: Reward.perTurn(-1, 0) },
  limits: { turns: 8 }
})
const sound = {
  scenarios: Scenario.generate((random) => ({ secret: random.integer(1, 9) })),
  start: () => ({ tries: 0, hint: "low" as const }),
  observe: () => "",
  act: (state: { readonly tries: number; readonly hint: "low" | "high" }) => state,
  done: () => false,
  score: () => ({ solved: 1 }),
  scoreTurn: () => ({ steps: 0 })
}

describe("what is inferred", () => {
  it("from schemas alone: names of rewards, no requirements", () => {
    expectTypeOf<Environment.RewardNames<typeof GuessNumber>>().toEqualTypeOf<"solved" | "speed">()
    expectTypeOf<Environment.Requirements<typeof GuessNumber>>().toEqualTypeOf<never>()
    expectTypeOf<
      Effect.Services<ReturnType<typeof trainEnvironment<typeof GuessNumber>>>
    >().toEqualTypeOf<BackendProvider>()
  })

  it("a service that an environment uses is asked for until a Layer provides it", () => {
    class WithMail extends declare({
      ...sound,
      start: () =>
        Effect.map(
          Effect.flatMap(Mailbox, (mail) => mail.count),
          (tries) => ({ tries, hint: "low" as const })
        )
    }) {}
    expectTypeOf<Environment.Requirements<typeof WithMail>>().toEqualTypeOf<Mailbox>()
    const training = trainEnvironment(WithMail)
    expectTypeOf<Effect.Services<typeof training>>().toEqualTypeOf<BackendProvider | Mailbox>()
    // @ts-expect-error missing services: Mailbox and BackendProvider
    void Effect.runPromise(training)
  })

  it("a per-episode Layer provides it, and its own needs are asked for", () => {
    class Provided extends declare(
      {
        ...sound,
        start: () =>
          Effect.map(
            Effect.flatMap(Mailbox, (mail) => mail.count),
            (tries) => ({ tries, hint: "low" as const })
          )
      },
      { perEpisode: Layer.succeed(Mailbox, { count: Effect.succeed(3) }) }
    ) {}
    expectTypeOf<Environment.Requirements<typeof Provided>>().toEqualTypeOf<never>()
  })

  it("an acquired resource needs nothing: the episode is its scope", () => {
    class Scoped extends declare({
      ...sound,
      start: () => Effect.acquireRelease(Effect.succeed({ tries: 0, hint: "low" as const }), () => Effect.void)
    }) {}
    expectTypeOf<Environment.Requirements<typeof Scoped>>().toEqualTypeOf<never>()
  })
})

describe("what fails to compile", () => {
  it("a scenario field that is not in the Schema", () => {
    declare({
      ...sound,
      // @ts-expect-error Property 'secrets' does not exist
      start: ({ secrets }) => ({ tries: secrets, hint: "low" })
    })
    declare({
      ...sound,
      // @ts-expect-error the generator makes another scenario
      scenarios: Scenario.generate(() => ({ secrets: 1 }))
    })
  })

  it("an unknown reward name, a missing one, and one of another kind", () => {
    declare({
      ...sound,
      // @ts-expect-error 'solve' does not exist
      score: () => ({ solve: 1 })
    })
    declare({
      ...sound,
      // @ts-expect-error 'steps' is a turn term
      scoreTurn: () => ({ solved: 1 })
    })
    const { scoreTurn: _, ...withoutTurns } = sound
    // @ts-expect-error scoreTurn is missing though a turn term is declared
    declare(withoutTurns)
  })

  it("a handler that takes another action", () => {
    declare({
      ...sound,
      // @ts-expect-error the action is a number
      act: (state, guess: string) => ({ ...state, tries: state.tries + guess.length })
    })
  })

  it("a state with a wrong literal", () => {
    declare({
      ...sound,
      // @ts-expect-error "middle" is no hint
      act: (state) => ({ ...state, hint: "middle" as const })
    })
  })

  it("an observation that is no text", () => {
    declare({
      ...sound,
      // @ts-expect-error a number is no observation
      observe: (state) => state.tries
    })
  })

  it("an unknown option of trainEnvironment", () => {
    // @ts-expect-error 'learningrate' does not exist
    trainEnvironment(GuessNumber, { learningrate: 1 })
  })
})
