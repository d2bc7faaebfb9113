/**
 * An environment is a class made in two steps: what it is (data that can be read without running anything) and how it
 * behaves (functions that return values or Effects).
 *
 * ```ts
 * export class GuessNumber extends Environment.Class("guess-number", {
 *   scenario: Schema.Struct({ secret: Schema.Int }),
 *   state: Schema.Struct({ tries: Schema.Int, hint: Schema.Literals(["start", "higher", "lower", "correct"]) }),
 *   action: Action.tag("guess", Schema.FiniteFromString),
 *   rewards: { solved: Reward.between(0, 1) },
 *   limits: { turns: 8 }
 * })({
 *   scenarios: Scenario.generate((random) => ({ secret: random.integer(1, 100) })),
 *   start: () => ({ tries: 0, hint: "start" }),
 *   observe: (state) => `Hint: ${state.hint}.`,
 *   act: (state, guess, { secret }) => ({ tries: state.tries + 1, hint: guess === secret ? "correct" : "lower" }),
 *   done: (state) => state.hint === "correct",
 *   score: (state) => ({ solved: state.hint === "correct" ? 1 : 0 })
 * }) {}
 * ```
 */
import type { Policy, Reward, Seed, StopReason } from "@ludus/core"
import type { Effect, Layer, Schema, Scope } from "effect"
import type { Action, Illegal } from "./action.ts"
import type { Limits } from "./limits.ts"
import type { Scenarios } from "./scenario.ts"

/** A value, or an Effect that makes it. Any failure of the Effect counts as a failure of the environment. */
export type OrEffect<A, R> = A | Effect.Effect<A, unknown, R>

/** What the environment is. */
export interface Spec<Sc, St, A, Seats extends string, Rewards extends Record<string, Reward.AnyTerm>> {
  /** Input of one episode; must survive encoding and decoding. */
  readonly scenario: Schema.Codec<Sc, unknown>
  /** State of one episode; immutable, must survive encoding and decoding. */
  readonly state: Schema.Codec<St, unknown>
  readonly action: Action<A>
  /** Named reward terms with bounds and weights. */
  readonly rewards: Rewards
  readonly limits: Limits
  /** Roles played by policies. Default: one seat, `player`. */
  readonly seats?: ReadonlyArray<Seats>
  /** First message of every conversation. */
  readonly system?: string
  /** One line for listings. */
  readonly description?: string
}

/** Where an act or an observation happens. */
export interface Turn<Seats extends string> {
  readonly seat: Seats
  /** 0, 1, 2, ...: turn of this seat. */
  readonly turn: number
  /** The episode's stream: seeded by the scenario, equal for all members of a group. */
  readonly random: Seed.RandomStream
}

/** How the episode ended for a seat. */
export interface Ending<Seats extends string> {
  readonly seat: Seats
  readonly stopReason: StopReason
  /** Set where an invalid reply ended it. */
  readonly invalid: "unparsed" | "illegal" | undefined
  /** Model calls, valid actions and invalid replies of this seat. */
  readonly turns: number
  readonly valid: number
  readonly unparsed: number
  readonly illegal: number
}

type NamesOf<Rewards, Kind extends Reward.AnyTerm["kind"]> = {
  [K in keyof Rewards]: Rewards[K] extends { readonly kind: Kind } ? K : never
}[keyof Rewards]

/** Values of the terms of one kind. */
export type Values<Rewards, Kind extends Reward.AnyTerm["kind"]> = { readonly [K in NamesOf<Rewards, Kind>]: number }

/** How the environment behaves. */
export interface Behaviour<Sc, St, A, Seats extends string, Rewards, Req> {
  readonly scenarios: Scenarios<Sc>
  /** The first state. All members of a group start from the same one. */
  readonly start: (scenario: Sc, context: { readonly random: Seed.RandomStream }) => OrEffect<St, Req>
  /** What the seat is shown before it answers. */
  readonly observe: (state: St, scenario: Sc, turn: Turn<Seats>) => OrEffect<string, Req>
  /** The next state, or `Action.illegal(why)`: then the state stays as it was. */
  readonly act: (state: St, action: A, scenario: Sc, turn: Turn<Seats>) => OrEffect<St | Illegal, Req>
  readonly done: (state: St, scenario: Sc) => boolean
  /** Whose turn it is. Default: the seats in order. */
  readonly next?: (state: St, scenario: Sc) => Seats
  /** The value of every episode term, in its bounds. */
  readonly score: (state: St, scenario: Sc, ending: Ending<Seats>) => OrEffect<Values<Rewards, "episode">, Req>
  /** Policies to stand beside a model in evaluations: random, scripted, optimal. */
  readonly baselines?: ReadonlyArray<Policy.Policy>
  /** Numbers beside the reward, averaged per iteration. */
  readonly metrics?: (state: St, scenario: Sc, ending: Ending<Seats>) => Record<string, number>
}

/** Needed where a term was declared with `Reward.perTurn`: the value of every turn term after one action. */
export interface TurnBehaviour<Sc, St, A, Seats extends string, Rewards, Req> {
  readonly scoreTurn: (
    change: { readonly before: St; readonly action: A; readonly after: St },
    scenario: Sc,
    turn: Turn<Seats>
  ) => OrEffect<Values<Rewards, "turn">, Req>
}

type WithTurns<Sc, St, A, Seats extends string, Rewards, Req> = [NamesOf<Rewards, "turn">] extends [never]
  ? unknown
  : TurnBehaviour<Sc, St, A, Seats, Rewards, Req>

type GroupRequirements<Rewards> = {
  [K in keyof Rewards]: Rewards[K] extends Reward.GroupTerm<infer R> ? R : never
}[keyof Rewards]

/** The class that `Environment.Class` makes. `Req` are the services that a Layer must still provide. */
export interface Environment<
  Id extends string,
  Sc,
  St,
  A,
  Seats extends string,
  Rewards extends Record<string, Reward.AnyTerm>,
  Req
> {
  new (): { readonly id: Id }
  readonly id: Id
  readonly spec: Spec<Sc, St, A, Seats, Rewards>
  readonly behaviour: Behaviour<Sc, St, A, Seats, Rewards, Req> & Partial<TurnBehaviour<Sc, St, A, Seats, Rewards, Req>>
  /** Services built afresh for each episode. */
  readonly perEpisode: Layer.Layer<unknown, unknown, unknown> | undefined
  /** Phantom: what is needed from outside. */
  readonly "~requirements": (_: never) => Req
}

// oxlint-disable-next-line no-explicit-any -- the one place where an environment's types are forgotten
export type Any = Environment<string, any, any, any, any, any, any>

/** The services that an environment needs from outside. */
export type Requirements<E> = E extends { readonly "~requirements": (_: never) => infer R } ? R : never

/** The names of an environment's reward terms. */
export type RewardNames<E> = E extends { readonly spec: { readonly rewards: infer R } } ? keyof R & string : never

/**
 * Declares an environment: first what it is, then how it behaves.
 *
 * `perEpisode` is a Layer whose services are built afresh for each episode, inside the episode's scope, so that
 * concurrent episodes cannot see each other's writes. Services that are not in it are shared: they are asked for in the
 * type of `trainEnvironment(env)` and provided once.
 */
export const Class =
  <
    const Id extends string,
    Sc,
    St,
    A,
    const Rewards extends Record<string, Reward.AnyTerm>,
    const Seats extends string = "player"
  >(
    id: Id,
    spec: Spec<Sc, St, A, Seats, Rewards>
  ) =>
  <Req = never, Provided = never, LayerReq = never>(
    behaviour: Behaviour<Sc, St, A, Seats, Rewards, Req> & WithTurns<Sc, St, A, Seats, Rewards, Req>,
    services?: { readonly perEpisode: Layer.Layer<Provided, unknown, LayerReq> }
  ): Environment<
    Id,
    Sc,
    St,
    A,
    Seats,
    Rewards,
    Exclude<Req | GroupRequirements<Rewards>, Provided | Scope.Scope> | Exclude<LayerReq, Scope.Scope>
  > => {
    class Declared {
      static readonly id = id
      static readonly spec = spec
      static readonly behaviour = behaviour
      static readonly perEpisode = services?.perEpisode
      readonly id = id
    }
    return Declared as never
  }
