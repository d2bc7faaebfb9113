/**
 * Calls of the user's own functions: a value or an Effect, in time, with every throw turned into one typed failure that
 * keeps the stack.
 */
import { Cause, Effect, Schema } from "effect"
import type { OrEffect } from "./environment.ts"

/** The environment's own code failed: it threw, its Effect failed, or it took too long. */
export class UserCodeFailure extends Schema.TaggedError<UserCodeFailure>()("UserCodeFailure", {
  where: Schema.String,
  message: Schema.String,
  stack: Schema.optionalKey(Schema.String),
  timedOut: Schema.Boolean
}) {}

const failure = (where: string, thrown: unknown): UserCodeFailure => {
  const error = thrown instanceof Error ? thrown : new Error(String(thrown))
  return new UserCodeFailure({
    where,
    message: `${where} failed: ${error.name}: ${error.message}`,
    ...(error.stack === undefined ? {} : { stack: error.stack }),
    timedOut: false
  })
}

/**
 * Runs `f` and waits for its Effect, if it returns one, for at most `seconds`. A plain value costs no fiber hop.
 */
export const callUser = <A, R>(
  where: string,
  seconds: number,
  f: () => OrEffect<A, R>
): Effect.Effect<A, UserCodeFailure, R> =>
  Effect.suspend(() => {
    let value: OrEffect<A, R>
    try {
      value = f()
    } catch (thrown) {
      return Effect.fail(failure(where, thrown))
    }
    if (!Effect.isEffect(value)) return Effect.succeed(value)
    return value.pipe(
      Effect.catchCause((cause) =>
        Cause.hasInterruptsOnly(cause) ? Effect.interrupt : Effect.fail(failure(where, Cause.squash(cause)))
      ),
      Effect.timeoutOrElse({
        duration: seconds * 1000,
        orElse: () =>
          Effect.fail(
            new UserCodeFailure({ where, message: `${where} did not answer within ${seconds} s`, timedOut: true })
          )
      })
    )
  })
