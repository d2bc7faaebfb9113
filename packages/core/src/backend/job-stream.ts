/**
 * A training job: started by a POST, then followed over an event stream that is taken up again wherever it was cut.
 */
import { Effect, Option, Schedule, Stream } from "effect"
import { Sse } from "effect/encoding"
import { HttpFailure, isRetryable } from "../http/http-failure.ts"
import { connectionFailure, openBody } from "../http/send.ts"
import { BackendError } from "./backend.ts"
import { call, decodeBody, fromDetail, type Link, linkRequest, toBackendError } from "./link.ts"
import { JobEvent, type SftRequest, TrainAccepted, type TrainRequest, TrainResult } from "./protocol.ts"

/** Silence after which the stream is opened again: a connection can die without a sign. */
const SILENCE = "2 minutes"

/** Failures in a row, without an event in between, after which following is given up. */
const MOST_FAILURES = 10

/**
 * Starts the job and waits for its end. A repeat of the POST with the same key is safe, so a job that the backend has
 * forgotten (it was restarted) is started again.
 */
export const runJob = (
  link: Link,
  name: string,
  kind: "train" | "sft",
  request: typeof TrainRequest.Encoded | typeof SftRequest.Encoded,
  onEvent: (event: JobEvent) => Effect.Effect<void>
): Effect.Effect<TrainResult, BackendError> =>
  Effect.gen(function* () {
    const { job } = yield* call(
      link,
      linkRequest(link, "POST", `/v1/ludus/models/${name}/${kind}`, request),
      TrainAccepted
    )
    const last = yield* followJob(link, job, onEvent)
    if (last.type === "completed" && last.result) return last.result
    return yield* fromDetail(last.error ?? { message: `Job ${job} failed without a reason.` })
  }).pipe(
    Effect.retry({ times: 2, while: (error) => error.code === "not_found" && error.status === 404 }),
    Effect.timeoutOrElse({
      duration: link.deadlines.train,
      orElse: () =>
        Effect.fail(
          new BackendError({
            code: "timeout",
            message: `The training of ${name} did not end within its deadline.`,
            field: "deadlines.train",
            expected: "a training that ends",
            advice:
              "Train on fewer tokens, or give a longer deadline. The training may still be going on in the backend."
          })
        )
    })
  )

/** The event that ends the job. */
const followJob = (
  link: Link,
  job: string,
  onEvent: (event: JobEvent) => Effect.Effect<void>
): Effect.Effect<JobEvent, BackendError> => {
  let seen = 0
  let failures = 0
  const request = () => linkRequest(link, "GET", `/v1/ludus/jobs/${job}/events?after=${seen}`)
  const take = (text: string) =>
    Effect.gen(function* () {
      const event = yield* decodeBody(JobEvent, text, request().url)
      failures = 0
      if (event.sequence <= seen) return event
      seen = event.sequence
      yield* onEvent(event)
      return event
    })
  const followOnce = Effect.scoped(
    Effect.gen(function* () {
      const body = yield* openBody(request())
      const end = yield* Stream.fromAsyncIterable(body, connectionFailure).pipe(
        Stream.timeoutOrElse({ duration: SILENCE, orElse: () => Stream.empty }),
        Stream.decodeText(),
        Stream.pipeThroughChannel(Sse.decode()),
        Stream.mapEffect((event) => take(event.data)),
        Stream.filter((event) => event.type !== "progress"),
        Stream.runHead
      )
      if (Option.isSome(end)) return end.value
      return yield* new HttpFailure({ message: "the event stream was cut", code: "cut" })
    })
  )
  return followOnce.pipe(
    Effect.mapError((error) =>
      error._tag === "BackendError" || error._tag === "HttpFailure"
        ? error
        : new HttpFailure({ message: "the event stream cannot be read", code: error._tag })
    ),
    Effect.retry({
      schedule: Schedule.min([Schedule.exponential(link.retry.baseMillis), Schedule.spaced(link.retry.capMillis)]).pipe(
        Schedule.jittered
      ),
      while: (error) => error._tag === "HttpFailure" && isRetryable(error) && ++failures < MOST_FAILURES
    }),
    Effect.mapError((error) => (error._tag === "BackendError" ? error : toBackendError(error, request().url)))
  )
}
