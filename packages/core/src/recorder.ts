/**
 * A recorder stands between an OpenAI client and the network, as the client's `fetch`: every chat completion that passes
 * is kept as an exchange with its exact ids, streamed or not. It also retries, so that the client need not. A stream that
 * its reader leaves early is read to its end all the same: what was sampled is what can be trained.
 */
import { Effect, Schema } from "effect"
import { makeAncestry } from "./ancestry.ts"
import { assembleChatStream } from "./chat-stream.ts"
import { ChatReply } from "./chat-wire.ts"
import { type DrainedBody, drainBody } from "./drained-body.ts"
import { exactAnswer } from "./exact-answer.ts"
import type { Exchange } from "./exchange.ts"
import { HttpFailure } from "./http/http-failure.ts"
import { defaultRetry, type RetryPolicy, withRetries } from "./http/retry.ts"
import { connectionFailure, pooledFetch } from "./http/send.ts"
import { LostExchange, UnfinishedReply } from "./lost-exchange.ts"
import { Message } from "./message.ts"

export interface RecorderOptions {
  /** Unique prefix of the request ids (`<prefix>/0`, `<prefix>/1`, ...): a retried request is not sampled twice. */
  readonly request: string
  /** Whether the exchanges will be trained. Default true: log-probabilities are asked for, and greedy sampling is refused. */
  readonly train?: boolean
  readonly retry?: Partial<RetryPolicy>
}

export interface Recorder {
  /** To be given to `new OpenAI({ fetch, maxRetries: 0 })`. */
  readonly fetch: typeof globalThis.fetch
  /**
   * What has passed so far, in the order of the answers. Throws `UnfinishedReply` while a streamed reply is coming, and
   * `LostExchange` where one was left and its rest did not come.
   */
  readonly exchanges: () => ReadonlyArray<Exchange>
  /** The same, as soon as every streamed reply has come whole. */
  readonly finished: Effect.Effect<ReadonlyArray<Exchange>, LostExchange>
  /** Closes the connections of streamed replies that are still coming. */
  readonly close: Effect.Effect<void>
}

const ChatBody = Schema.fromJsonString(
  Schema.StructWithRest(
    Schema.Struct({
      messages: Schema.Array(Message),
      temperature: Schema.optionalKey(Schema.NullOr(Schema.Finite)),
      stream: Schema.optionalKey(Schema.NullOr(Schema.Boolean)),
      ludus: Schema.optionalKey(Schema.Record(Schema.String, Schema.Unknown))
    }),
    [Schema.Record(Schema.String, Schema.Unknown)]
  )
)
const decodeReply = Schema.decodeUnknownSync(Schema.fromJsonString(ChatReply))

/** Makes a recorder for the calls of one episode. */
export const makeRecorder = (options: RecorderOptions): Recorder => {
  const exchanges: Array<Exchange> = []
  /** Messages up to and including the reply, by exchange. */
  const lengths = new Map<string, number>()
  const ancestry = makeAncestry()
  /** Streamed replies that are still coming, by request id. */
  const coming = new Map<string, DrainedBody>()
  let lost: LostExchange | undefined
  let requests = 0

  const record = (reply: ChatReply, asked: typeof ChatBody.Type, attempts: number, seconds: number): void => {
    for (const choice of reply.choices) {
      const answer = exactAnswer(reply, choice, ancestry)
      if (typeof answer === "string") throw new Error(`A reply cannot be recorded: ${answer}.`)
      const known = answer.parent === null ? 0 : (lengths.get(answer.parent) ?? 0)
      lengths.set(answer.id, asked.messages.length + 1)
      exchanges.push({
        ...answer,
        messages: asked.messages.slice(known),
        temperature: asked.temperature ?? 1,
        attempts,
        seconds
      })
    }
  }

  const recordedFetch = async (url: string, init: RequestInit): Promise<Response> => {
    const train = options.train ?? true
    const asked = Schema.decodeUnknownSync(ChatBody)(init.body)
    const request = `${options.request}/${requests++}`
    const ludus = { train, request, ...asked.ludus }
    const body = JSON.stringify({ ...asked, ...(train ? { logprobs: true } : {}), ludus })
    const streaming = asked.stream === true
    const started = performance.now()
    const outcome = await Effect.runPromise(
      Effect.result(withRetries(attempt(url, { ...init, body }, streaming), { ...defaultRetry, ...options.retry })),
      init.signal ? { signal: init.signal } : {}
    )
    if (outcome._tag === "Failure") return refusal(outcome.failure.failure)
    const { attempts, value } = outcome.success
    const seconds = () => (performance.now() - started) / 1000
    if (!streaming || value.body === null) {
      record(decodeReply(await value.clone().text()), asked, attempts, seconds())
      return value
    }
    const drained = drainBody(value.body, init.signal, (text) => {
      record(assembleChatStream(text), asked, attempts, seconds())
      coming.delete(request)
    })
    coming.set(request, drained)
    void drained.settled.then((cause) => {
      coming.delete(request)
      if (cause !== undefined) lost ??= new LostExchange({ request, cause })
    })
    return new Response(drained.body, { status: value.status, headers: value.headers })
  }

  return {
    exchanges: () => {
      if (lost !== undefined) throw lost
      if (coming.size > 0) throw new UnfinishedReply({ requests: [...coming.keys()] })
      return [...exchanges]
    },
    finished: Effect.gen(function* () {
      while (coming.size > 0) yield* Effect.promise(() => Promise.all([...coming.values()].map((one) => one.settled)))
      return lost === undefined ? [...exchanges] : yield* lost
    }),
    close: Effect.sync(() => {
      for (const one of coming.values()) one.close()
    }),
    fetch: (input, init) =>
      typeof input === "string" && init !== undefined && input.endsWith("/chat/completions")
        ? recordedFetch(input, init)
        : pooledFetch(input, init)
  }
}

/** One request; a success that is not streamed has arrived whole. Interruption ends the request, not a body that has begun. */
const attempt = (url: string, init: RequestInit, streaming: boolean): Effect.Effect<Response, HttpFailure> =>
  Effect.tryPromise({
    try: async (signal) => {
      const response = await pooledFetch(url, { ...init, signal })
      if (response.status < 400 && streaming) return response
      const body = await response.text()
      const headers = Object.fromEntries(response.headers)
      if (response.status < 400) return new Response(body, { status: response.status, headers })
      throw new HttpFailure({ message: `status ${response.status}`, status: response.status, body, headers })
    },
    catch: connectionFailure
  })

/** A refusal goes back as a response, so that the client makes its own error of it. */
const refusal = (failure: HttpFailure): Response => {
  if (failure.status === undefined) throw failure
  return new Response(failure.body ?? "", { status: failure.status, headers: { "content-type": "application/json" } })
}
