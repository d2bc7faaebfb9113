/**
 * What one seat has said and seen in an episode: its conversation, its exchanges and its counts.
 */
import { type Exchange, type Message, type Policy, Reward, type StopReason } from "@ludus/core"

export interface SeatLog {
  readonly seat: string
  readonly policy: Policy.Policy
  readonly messages: Array<Message.Message>
  readonly exchanges: Array<Exchange>
  turns: number
  sampledTokens: number
  valid: number
  unparsed: number
  illegal: number
  truncated: boolean
  /** Messages that the policy has seen or said; what lies after it is new in the next request. */
  told: number
  /** Discounted sums of the turn terms. */
  readonly turnTerms: Record<string, number>
}

export const openSeat = (seat: string, policy: Policy.Policy, system: string | undefined): SeatLog => ({
  seat,
  policy,
  messages: system === undefined ? [] : [{ role: "system", content: system }],
  exchanges: [],
  turns: 0,
  sampledTokens: 0,
  valid: 0,
  unparsed: 0,
  illegal: 0,
  truncated: false,
  told: 0,
  turnTerms: {}
})

/** Files an answer: the reply joins the conversation exactly as it came. */
export const record = (log: SeatLog, answer: Policy.Answer, options: Policy.AskOptions, seconds: number): void => {
  const previous = log.exchanges.at(-1)
  const extendsPrevious = previous !== undefined && answer.parent === previous.id
  log.exchanges.push({
    id: answer.id,
    parent: answer.parent,
    messages: extendsPrevious ? log.messages.slice(log.told) : log.messages.slice(),
    reply: answer.reply,
    finishReason: answer.finishReason,
    policy: answer.policy,
    temperature: options.temperature,
    ...(answer.tokens === undefined ? {} : { tokens: answer.tokens }),
    attempts: answer.attempts,
    seconds
  })
  log.messages.push(answer.reply)
  log.told = log.messages.length
  log.turns++
  log.sampledTokens += answer.tokens?.sampledIds.length ?? 0
}

/** Adds one turn's values, discounted by the seat's turn. */
export const addTurnTerms = (
  log: SeatLog,
  terms: Readonly<Record<string, Reward.AnyTerm>>,
  values: Readonly<Record<string, number>>
): void => {
  let turnReward = 0
  for (const [name, value] of Object.entries(values)) {
    const term = terms[name]
    if (term?.kind !== "turn") continue
    log.turnTerms[name] = (log.turnTerms[name] ?? 0) + term.discount ** (log.turns - 1) * value
    turnReward += term.weight * value
  }
  const last = log.exchanges.at(-1)
  if (last !== undefined) log.exchanges[log.exchanges.length - 1] = { ...last, turnReward }
}

/** Counts of one seat as metrics. */
export const counts = (log: SeatLog): Record<string, number> => ({
  turns: log.turns,
  sampled_tokens: log.sampledTokens,
  unparsed_replies: log.unparsed,
  illegal_actions: log.illegal
})

/** Why the seat's part ended, with the invalid reply if there was one. */
export interface SeatEnd {
  readonly stopReason: StopReason
  readonly invalid: "unparsed" | "illegal" | undefined
}
