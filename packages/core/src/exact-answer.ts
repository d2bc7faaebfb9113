/**
 * The exact ids of one choice of a Ludus reply, checked: hash, lengths, and that the prompt extends the parent.
 */
import type { Ancestry } from "./ancestry.ts"
import { type ChatChoice, type ChatReply, finishReason, logprobs } from "./chat-wire.ts"
import { hashIds } from "./exchange.ts"
import type { Answer } from "./policy.ts"

/** An answer with its ids; how often it was asked for is the caller's to say. */
export type ExactAnswer = Omit<Answer, "attempts"> & Required<Pick<Answer, "tokens">>

/** The answer, added to the ancestry; or, as text, what is wrong with the reply's ids. */
export const exactAnswer = (reply: ChatReply, choice: ChatChoice, ancestry: Ancestry): ExactAnswer | string => {
  const ludus = choice.ludus ?? reply.ludus
  const prompt = reply.prompt_token_ids
  const sampledIds = choice.token_ids
  const given = logprobs(choice)
  if (!ludus || !prompt || !sampledIds || given === undefined)
    return "the reply has no ids: this is not a Ludus backend"
  if (given.length !== sampledIds.length)
    return `${sampledIds.length} sampled ids came with ${given.length} log-probabilities`
  if (hashIds(prompt) !== ludus.prefixHash)
    return `the prompt ids of ${ludus.exchange} do not have the hash that came with them`
  const promptIds = ludus.parent === null ? prompt : ancestry.suffix(ludus.parent, prompt)
  if (promptIds === undefined) return `the prompt ids of ${ludus.exchange} do not extend those of ${ludus.parent}`
  ancestry.add(ludus.exchange, ludus.parent, promptIds, sampledIds)
  return {
    id: ludus.exchange,
    parent: ludus.parent,
    reply: choice.message,
    finishReason: finishReason(choice.finish_reason),
    policy: ludus.policy,
    tokens: { promptIds, sampledIds, logprobs: given, prefixHash: ludus.prefixHash }
  }
}
