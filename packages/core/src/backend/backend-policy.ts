/**
 * A model of the backend as a policy, with exact ids: each answer's prompt is checked to extend what was shown and
 * sampled before it, and only the ids behind that are kept.
 */
import { Effect } from "effect"
import { type Ancestry, makeAncestry } from "../ancestry.ts"
import { askEndpoint } from "../ask-endpoint.ts"
import { type ChatReply, finishReason, logprobs } from "../chat-wire.ts"
import { hashIds } from "../exchange.ts"
import { type Answer, type Conversation, type Policy, PolicyFailure } from "../policy.ts"
import { openEpisode } from "./episode.ts"
import { type Link, linkRequest } from "./link.ts"
import { EPISODE_HEADER } from "./protocol.ts"

/** `model` is `name` (its step is leased at the first call of an episode) or `name@step`. */
export const backendPolicy = (link: Link, model: string, contextLength: number | undefined): Policy => ({
  name: model,
  ...(contextLength === undefined ? {} : { contextLength }),
  open: (episode) =>
    openEpisode(link, `${episode.id}/${episode.seat}`).pipe(
      Effect.mapError(
        (error) =>
          new PolicyFailure({
            policy: model,
            message: `no episode: ${error.message}`,
            attempts: link.retry.attempts,
            ...(error.status === undefined ? {} : { status: error.status })
          })
      ),
      Effect.map(({ id }) => conversation(link, model, id))
    )
})

const conversation = (link: Link, model: string, episode: string): Conversation => {
  const ancestry = makeAncestry()
  const endpoint = { policy: model, retry: link.retry, deadline: link.deadlines.chat }
  return {
    ask: Effect.fn("BackendPolicy.ask")(function* (messages, options) {
      const request = linkRequest(link, "POST", "/v1/chat/completions", {
        model,
        messages,
        max_completion_tokens: options.maxTokens,
        temperature: options.temperature,
        seed: options.seed,
        logprobs: true,
        ludus: { train: options.train, request: `${episode}/${options.turn}` }
      })
      const { attempts, reply } = yield* askEndpoint({ ...request, headers: { ...request.headers, [EPISODE_HEADER]: episode } }, endpoint)
      const answer = toAnswer(reply, attempts, ancestry)
      if (typeof answer !== "string") return answer
      return yield* new PolicyFailure({ policy: model, message: `${link.url}: ${answer}`, attempts })
    })
  }
}

/** The answer, or what is wrong with the reply's ids. */
const toAnswer = (reply: ChatReply, attempts: number, ancestry: Ancestry): Answer | string => {
  const choice = reply.choices[0]
  const ludus = choice.ludus ?? reply.ludus
  const prompt = reply.prompt_token_ids
  const sampledIds = choice.token_ids
  const given = logprobs(choice)
  if (!ludus || !prompt || !sampledIds || given === undefined) return "the reply has no ids: this is not a Ludus backend"
  if (given.length !== sampledIds.length) return `${sampledIds.length} sampled ids came with ${given.length} log-probabilities`
  if (hashIds(prompt) !== ludus.prefixHash) return `the prompt ids of ${ludus.exchange} do not have the hash that came with them`
  const promptIds = ludus.parent === null ? prompt : ancestry.suffix(ludus.parent, prompt)
  if (promptIds === undefined) return `the prompt ids of ${ludus.exchange} do not extend those of ${ludus.parent}`
  ancestry.add(ludus.exchange, ludus.parent, promptIds, sampledIds)
  return {
    id: ludus.exchange,
    parent: ludus.parent,
    reply: choice.message,
    finishReason: finishReason(choice.finish_reason),
    policy: ludus.policy,
    tokens: { promptIds, sampledIds, logprobs: given, prefixHash: ludus.prefixHash },
    attempts
  }
}
