/**
 * The first words with a server: is it a Ludus backend, the expected one, of a version that we understand, and ready?
 * Training on another server's samples would be silent, so nothing is taken for granted.
 */
import { type Duration, Effect, Option, Schedule, Schema } from "effect"
import { isNotHttp } from "../http/http-failure.ts"
import { withRetries } from "../http/retry.ts"
import { send } from "../http/send.ts"
import { BackendError } from "./backend.ts"
import { call, decodeBody, type Link, linkRequest, toBackendError } from "./link.ts"
import { Capabilities, Health, PROTOCOL_VERSION } from "./protocol.ts"

/** What every version of a health body has. */
const HealthMark = Schema.fromJsonString(Schema.Struct({ protocol: Schema.Int, instance: Schema.String }))

/** Checks health (waiting while the backend starts) and gives its capabilities. */
export const greet = Effect.fn("Backend.greet")(function* (
  link: Link,
  options: { readonly instance: string | undefined; readonly startTimeout: Duration.Input }
): Effect.fn.Return<Capabilities, BackendError> {
  yield* checkHealth(link, options.instance).pipe(
    Effect.repeat({ schedule: Schedule.spaced("200 millis"), until: (health) => health.status !== "starting" }),
    Effect.timeoutOrElse({
      duration: options.startTimeout,
      orElse: () =>
        Effect.fail(
          new BackendError({
            code: "timeout",
            message: `The backend at ${link.url} is still starting.`,
            field: "startTimeout",
            expected: "a backend that is ready",
            advice: "Look into the backend's log, or wait longer."
          })
        )
    }),
    Effect.filterOrFail(
      (health) => health.status === "ok",
      (health) =>
        new BackendError({
          code: "engine_failed",
          message: `The backend at ${link.url} has failed: ${health.detail ?? "it does not say why"}`,
          advice: "Look into the backend's log."
        })
    )
  )
  return yield* call(link, linkRequest(link, "GET", "/v1/ludus/capabilities"), Capabilities)
})

const checkHealth = (link: Link, instance: string | undefined): Effect.Effect<Health, BackendError> => {
  const url = `${link.url}/health`
  return Effect.gen(function* () {
    const { value: text } = yield* withRetries(send({ method: "GET", url }), { ...link.retry, attempts: 3 }).pipe(
      Effect.timeoutOrElse({
        duration: link.deadlines.control,
        orElse: () => Effect.fail({ failure: undefined })
      }),
      Effect.mapError(({ failure }) => {
        if (failure === undefined) return foreign(link.url, "no answer")
        const answered = (failure.status !== undefined && failure.status < 500) || isNotHttp(failure)
        return answered ? foreign(link.url, failure.message) : toBackendError(failure, url)
      })
    )
    const mark = Schema.decodeOption(HealthMark)(text)
    if (Option.isNone(mark)) return yield* foreign(link.url, text.slice(0, 200))
    if (mark.value.protocol !== PROTOCOL_VERSION) {
      return yield* new BackendError({
        code: "incompatible",
        message: `The backend at ${link.url} speaks protocol ${mark.value.protocol}; this client speaks ${PROTOCOL_VERSION}.`,
        field: "protocol",
        value: String(mark.value.protocol),
        expected: String(PROTOCOL_VERSION),
        advice: "Use client and backend of the same release."
      })
    }
    if (instance !== undefined && mark.value.instance !== instance) {
      return yield* new BackendError({
        code: "foreign_server",
        message: `Another Ludus backend answers at ${link.url}, not the one that was started.`,
        field: "instance",
        value: mark.value.instance,
        expected: instance,
        advice: "Another process took the port: stop it, or start again to get another port."
      })
    }
    return yield* decodeBody(Health, text, url)
  })
}

const foreign = (url: string, value: string): BackendError =>
  new BackendError({
    code: "foreign_server",
    message: `The server at ${url} is not a Ludus backend.`,
    field: "url",
    value,
    expected: "the health report of a Ludus backend",
    advice: "Check address and port: another server listens there."
  })
