/**
 * Asking a chat-completions endpoint: one request with its retries, its deadline, and the two ways it can end badly.
 */
import { type Duration, Effect } from "effect"
import { type ChatReply, decodeChatReply, isContextOverflow } from "./chat-wire.ts"
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
  withRetries(send(request), retry).pipe(
    Effect.matchEffect({
      onSuccess: ({ attempts, value }) => {
        const decoded = decodeChatReply(value)
        return decoded._tag === "Success"
          ? Effect.succeed({ reply: decoded.success, attempts })
          : Effect.fail(
              new PolicyFailure({ policy, message: `not a chat completion: ${decoded.failure.message}`, attempts })
            )
      },
      onFailure: ({ attempts, failure }) =>
        Effect.fail(
          isContextOverflow(failure.status, failure.body)
            ? new ContextOverflow({ message: errorText(failure.body) })
            : new PolicyFailure({
                policy,
                message: `${request.url}: ${failure.message}${failure.body === undefined ? "" : `: ${errorText(failure.body)}`}`,
                attempts,
                ...(failure.status === undefined ? {} : { status: failure.status })
              })
        )
    }),
    Effect.timeoutOrElse({
      duration: deadline,
      orElse: () =>
        Effect.fail(
          new PolicyFailure({
            policy,
            message: `${request.url}: no answer within its deadline`,
            attempts: retry.attempts
          })
        )
    })
  )

/** The message inside an error body, or the start of the body. */
const errorText = (body: string | undefined): string => {
  const found = /"message"\s*:\s*"((?:[^"\\]|\\.)*)"/u.exec(body ?? "")
  return found?.[1] ?? (body ?? "").slice(0, 300)
}
