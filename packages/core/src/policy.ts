/**
 * A policy answers messages: a trainable model at a step, a fixed model on an OpenAI-compatible endpoint, or a scripted
 * function. The episode engine knows nothing else of models.
 */
import { Effect, Schema, type Scope } from "effect"
import type { FinishReason, Tokens } from "./exchange.ts"
import type { AssistantMessage, Message } from "./message.ts"

/** Settings of one call. */
export interface AskOptions {
  /** 0, 1, 2, ...: turn of this seat; part of the idempotency id. */
  readonly turn: number
  readonly maxTokens: number
  readonly temperature: number
  /** hash(run seed, iteration, scenario, member, seat, turn): members of a group differ. */
  readonly seed: number
  /** Whether the exchange will be trained: then whatever cuts the distribution is refused by the backend. */
  readonly train: boolean
}

/** What came back. `tokens` holds the *suffix* after `parent`, see {@link Tokens}. */
export interface Answer {
  readonly id: string
  readonly parent: string | null
  readonly reply: AssistantMessage
  readonly finishReason: FinishReason
  readonly policy: string
  readonly tokens?: Tokens
  readonly attempts: number
}

/** The prompt does not fit: an ending of the episode (`context_length`), not an error, and never retried. */
export class ContextOverflow extends Schema.TaggedError<ContextOverflow>()("ContextOverflow", {
  message: Schema.String
}) {}

/** The endpoint failed for good: after bounded retries, or with a status that no retry mends. */
export class PolicyFailure extends Schema.TaggedError<PolicyFailure>()("PolicyFailure", {
  policy: Schema.String,
  message: Schema.String,
  status: Schema.optionalKey(Schema.Int),
  attempts: Schema.Natural
}) {}

/** A conversation of one seat in one episode. */
export interface Conversation {
  /** `messages` is the whole conversation so far; earlier replies are passed back exactly as they were returned. */
  readonly ask: (
    messages: ReadonlyArray<Message>,
    options: AskOptions
  ) => Effect.Effect<Answer, ContextOverflow | PolicyFailure>
}

export interface Policy {
  readonly name: string
  /** Longest prompt plus reply in tokens, where it is known. */
  readonly contextLength?: number
  /** Opens a conversation for one seat of one episode; its scope ends leases and frees caches. */
  readonly open: (episode: {
    readonly id: string
    readonly seat: string
  }) => Effect.Effect<Conversation, PolicyFailure, Scope.Scope>
}

/** A policy made from a function: for baselines, opponents and tests. It sees the messages and the turn's seed. */
export const scripted = (
  name: string,
  answer: (messages: ReadonlyArray<Message>, options: AskOptions) => string | Effect.Effect<string>
): Policy => ({
  name,
  open: (episode) =>
    Effect.succeed({
      ask: (messages, options) =>
        Effect.gen(function* () {
          const given = answer(messages, options)
          const content = typeof given === "string" ? given : yield* given
          return {
            id: `${name}:${episode.id}/${episode.seat}/${options.turn}`,
            parent: options.turn === 0 ? null : `${name}:${episode.id}/${episode.seat}/${options.turn - 1}`,
            reply: { role: "assistant" as const, content },
            finishReason: "stop" as const,
            policy: name,
            attempts: 1
          }
        })
    })
})
