/**
 * Sending requests: undici with one pool of connections and without its limits on silence, because a generation may
 * take minutes. Whoever calls sets the deadline; interruption closes the connection.
 */
import { Agent, fetch as undiciFetch, request as undiciRequest } from "@effect/platform-node/Undici"
import { Effect, type Scope } from "effect"
import { HttpFailure } from "./http-failure.ts"

export interface HttpRequest {
  readonly method: "GET" | "POST" | "DELETE"
  readonly url: string
  readonly headers?: Readonly<Record<string, string>>
  /** A JSON text; a repeat sends the same bytes. */
  readonly body?: string
}

let pool: Agent | undefined

/** Idle connections close before common servers close them (uvicorn: 5 s), so that a reused one is rarely dead. */
const agent = (): Agent =>
  (pool ??= new Agent({ headersTimeout: 0, bodyTimeout: 0, keepAliveTimeout: 3000, allowH2: false }))

/** `fetch` on the same pool, for clients that bring their own request code. */
export const pooledFetch = ((input: never, init?: object) =>
  undiciFetch(input, { ...init, dispatcher: agent() })) as unknown as typeof globalThis.fetch

const begin = (request: HttpRequest, signal: AbortSignal) =>
  undiciRequest(request.url, {
    method: request.method,
    headers: { ...(request.body === undefined ? {} : { "content-type": "application/json" }), ...request.headers },
    body: request.body ?? null,
    dispatcher: agent(),
    signal
  })

const refused = (status: number, body: string, headers: HttpFailure["headers"] = {}) =>
  new HttpFailure({ message: `status ${status}`, status, body, headers })

/** What a failed connection or a cut body is, as a value. `fetch` hides the reason one level down. */
export const connectionFailure = (cause: unknown): HttpFailure => {
  if (cause instanceof HttpFailure) return cause
  if (!(cause instanceof Error)) return new HttpFailure({ message: String(cause), code: "unknown" })
  if (cause instanceof TypeError && cause.cause instanceof Error) return connectionFailure(cause.cause)
  const code = "code" in cause && typeof cause.code === "string" ? cause.code : cause.name
  return new HttpFailure({ message: cause.message || code, code })
}

/** Sends once and gives the body of a success as text. */
export const send = (request: HttpRequest): Effect.Effect<string, HttpFailure> =>
  Effect.tryPromise({
    try: async (signal) => {
      const reply = await begin(request, signal)
      const text = await reply.body.text()
      if (reply.statusCode >= 400) throw refused(reply.statusCode, text, reply.headers)
      return text
    },
    catch: connectionFailure
  })

/** Sends once and gives the body as it comes; closing the scope closes the connection. */
export const openBody = (request: HttpRequest): Effect.Effect<AsyncIterable<Uint8Array>, HttpFailure, Scope.Scope> =>
  Effect.gen(function* () {
    const controller = yield* Effect.acquireRelease(
      Effect.sync(() => new AbortController()),
      (made) => Effect.sync(() => made.abort())
    )
    return yield* Effect.tryPromise({
      try: async (signal) => {
        signal.addEventListener("abort", () => controller.abort(), { once: true })
        const reply = await begin(request, controller.signal)
        // An aborted body reports its end here; whoever reads it has its own way to know.
        reply.body.on("error", () => undefined)
        if (reply.statusCode >= 400) throw refused(reply.statusCode, await reply.body.text(), reply.headers)
        return reply.body
      },
      catch: connectionFailure
    })
  })
