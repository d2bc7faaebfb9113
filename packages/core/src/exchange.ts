/**
 * An exchange is one model call: what was shown, what was sampled, and the exact token ids behind both.
 *
 * The client's record is the truth of ids: what the endpoint returned is stored and sent to the trainer unchanged, and
 * nothing is tokenised again.
 */
import { createHash } from "node:crypto"
import { Schema } from "effect"
import { AssistantMessage, Message } from "./message.ts"

/** Why the model stopped: `length` says that the token limit cut the reply. */
export const FinishReason = Schema.Literals(["stop", "length", "tool_calls", "content_filter", "function_call"])
export type FinishReason = typeof FinishReason.Type

/** Token ids of one exchange. Ids that the parent exchange already holds are not stored again. */
export const Tokens = Schema.Struct({
  /** Prompt ids after the parent's prompt and sample; all prompt ids where there is no parent. */
  promptIds: Schema.Array(Schema.Natural),
  /** The ids that the model sampled, the end-of-turn token included if it was sampled. */
  sampledIds: Schema.Array(Schema.Natural),
  /** One natural-log probability per sampled id, at the sampling temperature. */
  logprobs: Schema.Array(Schema.Finite),
  /** SHA-256 (hex) over all prompt ids, ancestors' included, as little-endian uint32. */
  prefixHash: Schema.String
})
export type Tokens = typeof Tokens.Type

export const Exchange = Schema.Struct({
  /** Unique on the backend that sampled it. */
  id: Schema.String,
  /** The exchange whose prompt and sample this prompt extends, or `null` where history was rendered from its beginning. */
  parent: Schema.NullOr(Schema.String),
  /** The messages that this request added to its parent's conversation (all of them where there is no parent). */
  messages: Schema.Array(Message),
  reply: AssistantMessage,
  finishReason: FinishReason,
  /** `name@step` that sampled, or the name of a policy that is not trained. */
  policy: Schema.String,
  temperature: Schema.Finite,
  /** Absent for endpoints and scripted policies that return no ids: such an exchange cannot be trained. */
  tokens: Schema.optionalKey(Tokens),
  /** How many requests it took; more than one means that transport failures were retried. */
  attempts: Schema.Natural,
  /** Seconds from asking to answer. */
  seconds: Schema.Finite,
  /** Reward that the environment gave for this turn, already a part of the trajectory's reward. */
  turnReward: Schema.optionalKey(Schema.Finite)
})
export type Exchange = typeof Exchange.Type

/** SHA-256 (hex) over ids as little-endian uint32: the prefix hash of an exchange. */
export const hashIds = (ids: ReadonlyArray<number>): string => {
  const bytes = Buffer.allocUnsafe(ids.length * 4)
  for (let i = 0; i < ids.length; i++) bytes.writeUInt32LE(ids[i] ?? 0, i * 4)
  return createHash("sha256").update(bytes).digest("hex")
}
