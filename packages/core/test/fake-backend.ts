/** A Ludus backend in a few lines: real HTTP, canned ids. One token a reply; ids grow as the protocol says. */
import { Effect, type Scope } from "effect"
import { hashIds } from "../src/exchange.ts"
import { type Asked, type FakeEndpoint, fakeEndpoint, type Handler, json } from "./fake-endpoint.ts"

export const health = { status: "ok", protocol: 1, version: "0.1.0", instance: "nonce-1", engine: "embedded" }
export const capabilities = {
  protocol: 1,
  engine: "embedded",
  losses: ["cispo", "ppo"],
  options: ["loss", "learningRate"],
  deterministic: true
}
export const modelInfo = {
  name: "toy",
  step: 0,
  steps: [0],
  base: { source: "random" },
  lora: { rank: 8, alpha: 16 },
  contextLength: 512,
  parameters: 1000,
  resumed: false,
  checkpoint: "/state/models/toy/checkpoints/000000",
  notices: []
}
export const trainResult = {
  step: 1,
  trained: true,
  repeated: false,
  policy: "toy@1",
  metrics: { loss: 0.5 },
  nonFinite: [],
  reasons: {}
}

interface Served {
  readonly id: string
  readonly ids: ReadonlyArray<number>
}

/** `override` may answer first; it returns true where it did. */
export const fakeBackend = (
  override: (...given: Parameters<Handler>) => boolean = () => false
): Effect.Effect<FakeEndpoint, never, Scope.Scope> => {
  const histories = new Map<string, Served>()
  const reply = (asked: Asked) => {
    const scope = String(asked.headers["x-ludus-episode"] ?? asked.headers.authorization)
    const { messages, seed } = JSON.parse(asked.body) as { messages: ReadonlyArray<{ content: string }>; seed?: number }
    const parent = histories.get(scope)
    const prompt =
      parent === undefined
        ? [1, ...messages.map(({ content }) => content.length)]
        : [...parent.ids, 100 + messages.length]
    const sampled = [200 + ((seed ?? 0) % 50)]
    const exchange = `${scope}#${messages.length}`
    histories.set(scope, { id: exchange, ids: [...prompt, ...sampled] })
    const ludus = {
      exchange,
      parent: parent?.id ?? null,
      policy: "toy@0",
      prefixHash: hashIds(prompt),
      rendered: parent === undefined ? "first" : "bridged"
    }
    return {
      id: "c-1",
      object: "chat.completion",
      created: 1,
      model: "toy@0",
      prompt_token_ids: prompt,
      ludus,
      choices: [
        {
          index: 0,
          message: { role: "assistant", content: `reply ${sampled[0]}`, refusal: null },
          finish_reason: "stop",
          token_ids: sampled,
          logprobs: { content: [{ token: "t", logprob: -0.5, bytes: null, top_logprobs: [] }] },
          ludus
        }
      ],
      usage: { prompt_tokens: prompt.length, completion_tokens: 1, total_tokens: prompt.length + 1 }
    }
  }
  return fakeEndpoint((asked, response, request) => {
    if (override(asked, response, request)) return
    const { method, path } = asked
    if (path === "/health") return json(response, 200, health)
    if (path === "/v1/ludus/capabilities") return json(response, 200, capabilities)
    if (path === "/v1/ludus/models") return json(response, 200, modelInfo)
    if (path.endsWith("/checkpoints"))
      return json(response, 200, { checkpoints: [{ step: 0, path: "/p", key: null, metrics: {} }] })
    if (path === "/v1/ludus/forks") return json(response, 200, { ...modelInfo, name: JSON.parse(asked.body).name })
    if (path.endsWith("/checkpoints/delete"))
      return json(response, 200, { deleted: [0], kept: [{ step: 1, reason: "newest" }], notices: [] })
    if (path.endsWith("/export"))
      return json(response, 200, { step: 1, path: "/out", files: ["config.json"], bytes: 9, warnings: [] })
    if (path.endsWith("/train") || path.endsWith("/sft")) return json(response, 200, { job: "j1" })
    if (path.startsWith("/v1/ludus/jobs/"))
      return events(response, [{ sequence: 1, type: "completed", result: trainResult }])
    if (path === "/v1/ludus/episodes")
      return json(response, 200, { id: JSON.parse(asked.body).id, key: `key-${JSON.parse(asked.body).id}` })
    if (method === "DELETE") return json(response, 200, {})
    if (path === "/v1/chat/completions") return json(response, 200, reply(asked))
    json(response, 404, { error: { message: "no such route", code: "not_found" } })
  })
}

/** Server-sent events; `end` false leaves the stream open. */
export const events = (
  response: Parameters<Handler>[1],
  list: ReadonlyArray<Readonly<Record<string, unknown>>>,
  end = true
): void => {
  response.writeHead(200, { "content-type": "text/event-stream" })
  for (const event of list) response.write(`id: ${String(event["sequence"])}\ndata: ${JSON.stringify(event)}\n\n`)
  if (end) response.end()
}
