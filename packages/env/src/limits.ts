/**
 * Limits of an episode. They are looked at before each model call, in this order: `seconds`, `turns`, `tokens`; after the
 * call, a reply that was cut and holds no whole action is the ending `max_tokens`; a prompt that does not fit the model is
 * the ending `context_length`.
 */
export interface Limits {
  /** Model calls of one seat. */
  readonly turns: number
  /** Sampled tokens of one reply. Default 256. */
  readonly tokensPerTurn?: number
  /** Sampled tokens of one seat over the whole episode. Default: no limit of its own. */
  readonly tokens?: number
  /** Seconds of the whole episode, waiting for the model included. Default 600. */
  readonly seconds?: number
  /** Invalid replies that a seat may make before the episode ends with `invalid_action`. Default 0. */
  readonly invalidReplies?: number
  /** Seconds that one call of the environment's own code may take (start, observe, act, done). Default 30. */
  readonly environmentSeconds?: number
  /** Seconds that scoring one episode may take. Default 60. */
  readonly rewardSeconds?: number
}

export type ResolvedLimits = Required<Omit<Limits, "tokens">> & { readonly tokens: number }

export const resolveLimits = (limits: Limits): ResolvedLimits => ({
  turns: limits.turns,
  tokensPerTurn: limits.tokensPerTurn ?? 256,
  tokens: limits.tokens ?? Number.MAX_SAFE_INTEGER,
  seconds: limits.seconds ?? 600,
  invalidReplies: limits.invalidReplies ?? 0,
  environmentSeconds: limits.environmentSeconds ?? 30,
  rewardSeconds: limits.rewardSeconds ?? 60
})
