/**
 * The chat-completions wire: the request that policies send and the part of the reply that they read, in OpenAI's form
 * with vLLM's ids and the `ludus` extension. Unknown fields pass.
 */
import { Schema } from "effect"
import { LudusReply } from "./backend/protocol.ts"
import { type FinishReason, FinishReason as FinishReasons } from "./exchange.ts"
import { AssistantMessage, type Message } from "./message.ts"

const isIds = (value: unknown): value is ReadonlyArray<number> =>
  Array.isArray(value) && value.every((id) => Number.isSafeInteger(id) && id >= 0)

/** Token ids, checked in one loop: a prompt may have many thousands. */
const TokenIds = Schema.declare(isIds, { expected: "an array of token ids" })

const absent = <S extends Schema.Constraint>(schema: S) => Schema.optionalKey(Schema.NullOr(schema))

export const ChatChoice = Schema.Struct({
  message: AssistantMessage,
  finish_reason: absent(Schema.String),
  token_ids: absent(TokenIds),
  logprobs: absent(Schema.Struct({ content: absent(Schema.Array(Schema.Struct({ logprob: Schema.Finite }))) })),
  ludus: absent(LudusReply)
})
export type ChatChoice = typeof ChatChoice.Type

export const ChatReply = Schema.Struct({
  prompt_token_ids: absent(TokenIds),
  choices: Schema.NonEmptyArray(ChatChoice),
  ludus: absent(LudusReply)
})
export type ChatReply = typeof ChatReply.Type

/** Reads a reply's text. */
export const decodeChatReply = Schema.decodeUnknownResult(Schema.fromJsonString(ChatReply))

/** Finish reasons outside the OpenAI list (servers have a few of their own) mean that the model stopped. */
export const finishReason = (given: string | null | undefined): FinishReason =>
  Schema.is(FinishReasons)(given) ? given : "stop"

/** Log-probabilities of the sampled ids; `undefined` where the endpoint gave none. */
export const logprobs = (choice: ChatChoice): ReadonlyArray<number> | undefined =>
  choice.logprobs?.content?.map(({ logprob }) => logprob)

/** How an endpoint wants an assistant message without content: some refuse `null`, some refuse `""`. */
export type NullContent = "null" | "empty" | "omit"

/** Messages in an endpoint's form. An assistant message without content is never left out. */
export const wireMessages = (messages: ReadonlyArray<Message>, form: NullContent): ReadonlyArray<Message> =>
  form === "null"
    ? messages
    : messages.map((message) => {
        if (message.role !== "assistant" || (message.content !== null && message.content !== undefined)) return message
        const { content: _, ...rest } = message
        return form === "empty" ? { ...rest, content: "" } : rest
      })

/**
 * Whether a refusal says that the prompt does not fit: OpenAI's code, and the wordings of OpenAI and vLLM ("maximum
 * context length is ...", "max_tokens must be at least 1, got -17").
 */
export const isContextOverflow = (status: number | undefined, body: string | undefined): boolean =>
  status === 400 &&
  /context_length_exceeded|maximum context length|max(_completion|_new)?_tokens must be at least 1, got -?\d/iu.test(
    body ?? ""
  )
