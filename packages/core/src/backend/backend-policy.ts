/**
 * A model of the backend as a policy, with exact ids: each answer's prompt is checked to extend what was shown and
 * sampled before it, and only the ids behind that are kept.
 */
import { Effect } from "effect"
import { makeAncestry } from "../ancestry.ts"
import { askEndpoint } from "../ask-endpoint.ts"
import { exactAnswer } from "../exact-answer.ts"
import { type Conversation, type Policy, PolicyFailure } from "../policy.ts"
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
      const { attempts, reply } = yield* askEndpoint(
        { ...request, headers: { ...request.headers, [EPISODE_HEADER]: episode } },
        endpoint
      )
      const answer = exactAnswer(reply, reply.choices[0], ancestry)
      if (typeof answer !== "string") return { ...answer, attempts }
      return yield* new PolicyFailure({ policy: model, message: `${link.url}: ${answer}`, attempts })
    })
  }
}
