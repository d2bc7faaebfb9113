/**
 * Retrying: a bounded number of attempts with jittered exponential back-off, and what a server asks for in Retry-After
 * up to a cap.
 */
import { Clock, Effect, Random } from "effect"
import { HttpFailure, isRetryable } from "./http-failure.ts"

export interface RetryPolicy {
  /** Attempts in all, the first included. Default 7: about 16 s, enough for a server to be restarted. */
  readonly attempts: number
  /** Wait before the second attempt in milliseconds; it doubles for each further one. Default 250. */
  readonly baseMillis: number
  /** Longest wait of our own choice, in milliseconds. Default 10,000. */
  readonly capMillis: number
  /** Longest wait that a server may ask for, in milliseconds. Default 60,000. */
  readonly retryAfterCapMillis: number
  /** What to do where a server asks for more: wait for the cap, or fail at once. Default `wait`. */
  readonly beyondCap: "wait" | "fail"
}

export const defaultRetry: RetryPolicy = {
  attempts: 7,
  baseMillis: 250,
  capMillis: 10_000,
  retryAfterCapMillis: 60_000,
  beyondCap: "wait"
}

/** The last failure, and how many attempts were made. */
export interface GaveUp {
  readonly failure: HttpFailure
  readonly attempts: number
}

/** Runs `attempt` until it succeeds, fails with something no repeat mends, or the attempts are used up. */
export const withRetries = <A>(
  attempt: Effect.Effect<A, HttpFailure>,
  policy: RetryPolicy
): Effect.Effect<{ readonly value: A; readonly attempts: number }, GaveUp> => {
  const go = (attempts: number): Effect.Effect<{ readonly value: A; readonly attempts: number }, GaveUp> =>
    Effect.matchEffect(attempt, {
      onSuccess: (value) => Effect.succeed({ value, attempts }),
      onFailure: (failure) => {
        if (attempts >= policy.attempts || !isRetryable(failure)) return Effect.fail({ failure, attempts })
        return Effect.flatMap(waitMillis(failure, attempts, policy), (wait) =>
          wait === undefined
            ? Effect.fail({ failure: limited(failure), attempts })
            : Effect.andThen(Effect.sleep(wait), go(attempts + 1))
        )
      }
    })
  return go(1)
}

/** Milliseconds to wait after failed attempt number `attempts` (1, 2, ...); `undefined` where waiting would be too long. */
export const waitMillis = (
  failure: HttpFailure,
  attempts: number,
  policy: RetryPolicy
): Effect.Effect<number | undefined> =>
  Effect.gen(function* () {
    const asked = retryAfterMillis(failure.headers ?? {}, yield* Clock.currentTimeMillis)
    if (asked !== undefined && asked > 0) {
      if (asked > policy.retryAfterCapMillis && policy.beyondCap === "fail") return undefined
      return Math.min(asked, policy.retryAfterCapMillis)
    }
    // Full jitter above a half, so that clients that failed together do not come back together.
    const backOff = Math.min(policy.capMillis, policy.baseMillis * 2 ** (attempts - 1))
    return backOff * (0.5 + 0.5 * (yield* Random.next))
  })

/**
 * What the server asked for: `retry-after-ms`, or `retry-after` in seconds or as an HTTP date (RFC 9110, 10.2.3).
 * `undefined` where it says nothing that can be read.
 */
export const retryAfterMillis = (headers: NonNullable<HttpFailure["headers"]>, now: number): number | undefined => {
  const read = (name: string) => {
    const value = headers[name]
    return Array.isArray(value) ? value[0] : value
  }
  const millis = number(read("retry-after-ms"))
  if (millis !== undefined) return millis
  const after = read("retry-after")
  const seconds = number(after)
  if (seconds !== undefined) return seconds * 1000
  const date = Date.parse(after ?? "")
  return Number.isNaN(date) ? undefined : date - now
}

const number = (text: string | undefined): number | undefined =>
  text !== undefined && /^\s*\d+(\.\d+)?\s*$/u.test(text) ? Number(text) : undefined

const limited = (failure: HttpFailure): HttpFailure =>
  new HttpFailure({
    message: `${failure.message}: it asks for a longer wait (retry-after ${String(failure.headers?.["retry-after"])}) than the cap allows`,
    ...(failure.status === undefined ? {} : { status: failure.status }),
    ...(failure.body === undefined ? {} : { body: failure.body }),
    ...(failure.headers === undefined ? {} : { headers: failure.headers })
  })
