/**
 * A policy on any OpenAI-compatible endpoint: an opponent, a judge, a baseline, or vLLM. Ids are kept where the endpoint
 * gives them (vLLM does when asked with `return_token_ids`); without ids its exchanges cannot be trained.
 */
import { type Duration, Effect, Redacted } from "effect"
import { makeAncestry } from "./ancestry.ts"
import { askEndpoint } from "./ask-endpoint.ts"
import { finishReason, logprobs, type NullContent, wireMessages } from "./chat-wire.ts"
import { hashIds } from "./exchange.ts"
import { defaultRetry, type RetryPolicy } from "./http/retry.ts"
import type { Answer, Policy } from "./policy.ts"

export interface OpenAIPolicyOptions {
  /** Name in records and metrics. Default: the model. */
  readonly name?: string
  /** Up to and including `/v1`. */
  readonly baseUrl: string
  readonly apiKey?: Redacted.Redacted
  readonly model: string
  /** Longest prompt plus reply in tokens, where it is known. */
  readonly contextLength?: number
  /** Further fields of the request body, such as `top_p` or `return_token_ids`. */
  readonly body?: Readonly<Record<string, unknown>>
  readonly headers?: Readonly<Record<string, string>>
  /** Older servers know only `max_tokens`. Default `max_completion_tokens`. */
  readonly maxTokensField?: "max_completion_tokens" | "max_tokens"
  /** How an assistant message without content is sent. Default `null`. */
  readonly nullContent?: NullContent
  /** Whether the turn's seed is sent. Default true. */
  readonly seed?: boolean
  readonly retry?: Partial<RetryPolicy>
  /** Longest wait for one answer, retries included. Default 10 minutes. */
  readonly deadline?: Duration.Input
}

/** Makes the policy; nothing is sent before an episode asks. */
export const openaiPolicy = (options: OpenAIPolicyOptions): Policy => {
  const name = options.name ?? options.model
  const endpoint = {
    policy: name,
    retry: { ...defaultRetry, ...options.retry },
    deadline: options.deadline ?? "10 minutes"
  }
  const url = `${options.baseUrl.replace(/\/+$/u, "")}/chat/completions`
  const headers = {
    ...(options.apiKey === undefined ? {} : { authorization: `Bearer ${Redacted.value(options.apiKey)}` }),
    ...options.headers
  }
  return {
    name,
    ...(options.contextLength === undefined ? {} : { contextLength: options.contextLength }),
    open: (episode) =>
      Effect.sync(() => {
        const ancestry = makeAncestry()
        return {
          ask: Effect.fn("OpenAIPolicy.ask")(function* (messages, turn) {
            const body = JSON.stringify({
              model: options.model,
              messages: wireMessages(messages, options.nullContent ?? "null"),
              [options.maxTokensField ?? "max_completion_tokens"]: turn.maxTokens,
              temperature: turn.temperature,
              ...(options.seed === false ? {} : { seed: turn.seed }),
              ...options.body
            })
            const { attempts, reply } = yield* askEndpoint({ method: "POST", url, headers, body }, endpoint)
            const choice = reply.choices[0]
            const id = `${name}:${episode.id}/${episode.seat}/${turn.turn}`
            const answer: Answer = {
              id,
              parent: null,
              reply: choice.message,
              finishReason: finishReason(choice.finish_reason),
              policy: name,
              attempts
            }
            const prompt = reply.prompt_token_ids
            const sampledIds = choice.token_ids
            const given = logprobs(choice)
            if (!prompt || !sampledIds || given?.length !== sampledIds.length) return answer
            const last = ancestry.last()
            const suffix = last === undefined ? undefined : ancestry.suffix(last, prompt)
            const parent = suffix === undefined ? null : (last ?? null)
            const promptIds = suffix ?? prompt
            ancestry.add(id, parent, promptIds, sampledIds)
            return {
              ...answer,
              parent,
              tokens: { promptIds, sampledIds, logprobs: given, prefixHash: hashIds(prompt) }
            }
          })
        }
      })
  }
}
