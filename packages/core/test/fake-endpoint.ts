/** A real HTTP server on loopback that answers as a test says, and remembers what it was asked. */
import { createServer, type IncomingMessage, type ServerResponse } from "node:http"
import type { AddressInfo } from "node:net"
import { Effect, type Scope } from "effect"

export interface Asked {
  readonly method: string
  readonly path: string
  readonly headers: IncomingMessage["headers"]
  /** The body's text. */
  readonly body: string
}

export interface FakeEndpoint {
  readonly url: string
  readonly asked: Array<Asked>
  /** Requests whose connection the client closed before the answer. */
  readonly dropped: () => number
}

export type Handler = (asked: Asked, response: ServerResponse, request: IncomingMessage) => void

export const fakeEndpoint = (handler: Handler): Effect.Effect<FakeEndpoint, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.callback<FakeEndpoint & { readonly close: Effect.Effect<void> }>((resume) => {
      const asked: Array<Asked> = []
      let dropped = 0
      const server = createServer((request, response) => {
        const chunks: Array<Buffer> = []
        response.on("close", () => {
          if (!response.writableEnded) dropped += 1
        })
        request.on("data", (chunk: Buffer) => chunks.push(chunk))
        request.on("end", () => {
          const one = {
            method: request.method ?? "",
            path: request.url ?? "",
            headers: request.headers,
            body: Buffer.concat(chunks).toString()
          }
          asked.push(one)
          handler(one, response, request)
        })
      })
      server.listen(0, "127.0.0.1", () => {
        const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
        const close = Effect.callback<void>((done) => {
          server.close(() => done(Effect.void))
          server.closeAllConnections()
        })
        resume(Effect.succeed({ url, asked, dropped: () => dropped, close }))
      })
    }),
    ({ close }) => close
  )

export const json = (
  response: ServerResponse,
  status: number,
  body: unknown,
  headers: Record<string, string> = {}
): void => {
  response.writeHead(status, { "content-type": "application/json", ...headers })
  response.end(JSON.stringify(body))
}

/** Closes the connection in the middle of a request, as a crashed server does. */
export const reset = (request: IncomingMessage): void => {
  request.socket.resetAndDestroy()
}

/** A chat completion in the OpenAI form. */
export const completion = (content: string | null, more: Record<string, unknown> = {}) => ({
  id: "c-1",
  object: "chat.completion",
  created: 1,
  model: "m",
  choices: [{ index: 0, message: { role: "assistant", content, refusal: null }, finish_reason: "stop" }],
  usage: { prompt_tokens: 3, completion_tokens: 2, total_tokens: 5 },
  ...more
})
