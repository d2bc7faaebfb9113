/**
 * The line to one backend: its address, its token, and how requests that control it are sent.
 */
import { type Duration, Effect, Option, Schema } from "effect"
import { HttpFailure } from "../http/http-failure.ts"
import { type GaveUp, type RetryPolicy, withRetries } from "../http/retry.ts"
import { type HttpRequest, send } from "../http/send.ts"
import { BackendError } from "./backend.ts"
import { ErrorBody, type ErrorDetail } from "./protocol.ts"

/** Longest waits, retries included. */
export interface Deadlines {
  /** Health, capabilities, episodes, checkpoints. Default 1 minute. */
  readonly control: Duration.Input
  /** Registering a model, which may load it from disk or fetch it. Default 1 hour. */
  readonly register: Duration.Input
  /** One answer of a model, queueing included. Default 10 minutes. */
  readonly chat: Duration.Input
  /** One update. Default 6 hours. */
  readonly train: Duration.Input
}

export const defaultDeadlines: Deadlines = {
  control: "1 minute",
  register: "1 hour",
  chat: "10 minutes",
  train: "6 hours"
}

export interface Link {
  /** Without a trailing slash. */
  readonly url: string
  readonly token: string
  readonly retry: RetryPolicy
  readonly deadlines: Deadlines
}

/** A request to the backend, with the bearer token. */
export const linkRequest = (link: Link, method: HttpRequest["method"], path: string, body?: unknown): HttpRequest => ({
  method,
  url: `${link.url}${path}`,
  headers: { authorization: `Bearer ${link.token}` },
  ...(body === undefined ? {} : { body: JSON.stringify(body) })
})

/** Sends with retries and a deadline, and decodes the answer. */
export const call = <S extends Schema.ConstraintDecoder<unknown>>(
  link: Link,
  request: HttpRequest,
  schema: S,
  deadline: Duration.Input = link.deadlines.control
): Effect.Effect<S["Type"], BackendError> =>
  withRetries(send(request), link.retry).pipe(
    Effect.timeoutOrElse({ duration: deadline, orElse: () => Effect.fail(silent) }),
    Effect.mapError(({ failure }) => toBackendError(failure, request.url)),
    Effect.flatMap(({ value }) => decodeBody(schema, value, request.url))
  )

/** Decodes the text of an answer. */
export const decodeBody = <S extends Schema.ConstraintDecoder<unknown>>(
  schema: S,
  text: string,
  url: string
): Effect.Effect<S["Type"], BackendError> =>
  Schema.decodeEffect(Schema.fromJsonString(schema))(text).pipe(
    Effect.mapError(
      (error) =>
        new BackendError({
          code: "foreign_server",
          message: `${url} answered with something else than the protocol says: ${error.message}`,
          field: url,
          value: text.slice(0, 200),
          expected: "a reply of a Ludus backend",
          advice: "Check the address, and that client and backend come from the same release."
        })
    )
  )

const silent: Pick<GaveUp, "failure"> = {
  failure: new HttpFailure({ message: "no answer within its deadline", code: "deadline" })
}

/** A failed request as a {@link BackendError}: the backend's own words where it gave some. */
export const toBackendError = (failure: HttpFailure, url: string): BackendError => {
  const body = Schema.decodeUnknownOption(Schema.fromJsonString(ErrorBody))(failure.body)
  if (Option.isSome(body)) return fromDetail(body.value.error, failure.status)
  if (failure.status === undefined) {
    return new BackendError({
      code: failure.code === "deadline" ? "timeout" : "unreachable",
      message: `${url}: ${failure.message}`,
      field: "url",
      value: url,
      expected: "a running Ludus backend",
      advice: "Check that the backend runs and that the address and port are right."
    })
  }
  return new BackendError({
    code:
      failure.status === 401 || failure.status === 403
        ? "unauthorized"
        : failure.status === 404
          ? "not_found"
          : "internal",
    message: `${url} answered with status ${failure.status}: ${(failure.body ?? "").slice(0, 300)}`,
    status: failure.status,
    field: "url",
    value: url,
    expected: "a reply of a Ludus backend",
    advice: failure.status === 401 || failure.status === 403 ? "Check the token." : "Look into the backend's log."
  })
}

/** An error of the protocol as a {@link BackendError}. */
export const fromDetail = (detail: ErrorDetail, status?: number): BackendError =>
  new BackendError({
    code: detail.code ?? "internal",
    message: detail.message,
    ...(detail.field ? { field: detail.field } : {}),
    ...(detail.value ? { value: detail.value } : {}),
    ...(detail.expected ? { expected: detail.expected } : {}),
    ...(detail.advice ? { advice: detail.advice } : {}),
    ...(status === undefined ? {} : { status })
  })
