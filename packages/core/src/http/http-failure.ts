import { Data } from "effect"

/** One HTTP request that gave no success: the connection failed, or the status was 400 or above. */
export class HttpFailure extends Data.TaggedError("HttpFailure")<{
  readonly message: string
  /** Absent where no whole answer came. */
  readonly status?: number
  /** Body of the answer, as text. */
  readonly body?: string
  readonly headers?: Readonly<Record<string, string | Array<string> | undefined>>
  /** The operating system's or the client's code of a failed connection, such as `ECONNRESET`. */
  readonly code?: string
}> {}

/** Failures that a repeat may mend: a lost connection, and the statuses that say "later". */
const RETRYABLE = new Set([408, 429, 500, 502, 503, 504])

export const isRetryable = (failure: HttpFailure): boolean => {
  if (failure.status !== undefined) return RETRYABLE.has(failure.status)
  return !isNotHttp(failure) && failure.code !== "ENOTFOUND" && failure.code !== "ERR_INVALID_URL"
}

/** Something answered, but not in HTTP. */
export const isNotHttp = (failure: HttpFailure): boolean => /^(HPE_|HTTPParserError)/u.test(failure.code ?? "")
