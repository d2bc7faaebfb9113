/**
 * Asking a chat-completions endpoint: one request with its retries, its deadline, and the two ways it can end badly.
 */
import { type Duration, Effect, Option, Schema } from "effect"
import { type ChatReply, decodeChatReply, isContextOverflow } from "./chat-wire.ts"
import { HttpFailure } from "./http/http-failure.ts"
import { type RetryPolicy, withRetries } from "./http/retry.ts"
import { type HttpRequest, send } from "./http/send.ts"
import { ContextOverflow, PolicyFailure } from "./policy.ts"

export interface AskEndpoint {
  /** Name of the policy, for messages. */
  readonly policy: string
  readonly retry: RetryPolicy
  /** Longest wait for an answer, retries included. */
  readonly deadline: Duration.Input
}

/** Sends, decodes, and says how many attempts it took. A prompt that does not fit is never sent twice. */
export const askEndpoint = (
  request: HttpRequest,
  { deadline, policy, retry }: AskEndpoint
): Effect.Effect<{ readonly reply: ChatReply; readonly attempts: number }, ContextOverflow | PolicyFailure> =>
  Effect.suspend(() => {
    let attempts = 0
    const once = Effect.suspend(() => {
      attempts += 1
      return send(request)
    })
    return withRetries(once, retry).pipe(
      Effect.timeoutOrElse({ duration: deadline, orElse: () => Effect.fail({ failure: tooLate }) }),
      Effect.matchEffect({
        onFailure: ({ failure }) => Effect.fail(toEnding(policy, request.url, failure, attempts)),
        onSuccess: ({ value }) => {
          const decoded = decodeChatReply(value)
          if (decoded._tag === "Success") return Effect.succeed({ reply: decoded.success, attempts })
          const message = `${request.url}: not a chat completion: ${decoded.failure.message}`
          return Effect.fail(new PolicyFailure({ policy, message, attempts }))
        }
      })
    )
  })

const tooLate = new HttpFailure({ message: "no answer within its deadline", code: "deadline" })

const toEnding = (
  policy: string,
  url: string,
  failure: HttpFailure,
  attempts: number
): ContextOverflow | PolicyFailure =>
  isContextOverflow(failure.status, failure.body)
    ? new ContextOverflow({ message: errorText(failure.body) })
    : new PolicyFailure({
        policy,
        message: [url, failure.message, ...(failure.body === undefined ? [] : [errorText(failure.body)])].join(": "),
        attempts,
        ...(failure.status === undefined ? {} : { status: failure.status })
      })

/** The two shapes of error bodies: OpenAI's, and the older one of vLLM. */
const ErrorText = Schema.fromJsonString(
  Schema.Union([
    Schema.Struct({ error: Schema.Struct({ message: Schema.String }) }),
    Schema.Struct({ message: Schema.String })
  ])
)

/** The message inside an error body, or the start of the body. */
const errorText = (body: string | undefined): string => {
  const found = Option.getOrUndefined(Schema.decodeUnknownOption(ErrorText)(body))
  if (found === undefined) return (body ?? "").slice(0, 300)
  return "error" in found ? found.error.message : found.message
}
