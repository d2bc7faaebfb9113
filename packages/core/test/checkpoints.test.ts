import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import { connect, layerHttp } from "../src/backend/http-backend.ts"
import type { SftExample } from "../src/backend/protocol.ts"
import * as TrainableModel from "../src/trainable-model.ts"
import { fakeBackend } from "./fake-backend.ts"

const examples: ReadonlyArray<SftExample> = [
  {
    messages: [
      { role: "user", content: "2 + 3?" },
      { role: "assistant", content: "5", weight: 1 }
    ]
  }
]

describe("checkpoints and lessons over HTTP", () => {
  it.live("a model is taught, forked, exported and thinned out with the bodies of the protocol", () =>
    Effect.gen(function* () {
      const server = yield* fakeBackend()
      yield* Effect.gen(function* () {
        const model = yield* TrainableModel.make({ name: "toy" }).register
        assert.strictEqual((yield* model.sft(examples, { epochs: 2 })).step, 1)
        assert.strictEqual(yield* model.step, 1)
        yield* model.sft(examples, { epochs: 2 }, { from: 0 })
        assert.deepStrictEqual((yield* model.deleteCheckpoints({ keepLast: 1 })).deleted, [0])
        assert.strictEqual((yield* model.exportTo("/out", { dtype: "bf16" })).path, "/out")
        const branch = yield* TrainableModel.fork({ name: "branch", model: "toy", step: 1, optimizer: true })
        assert.strictEqual(branch.inferenceName(0), "branch@0")
      }).pipe(Effect.provide(layerHttp({ url: server.url, token: "t-1" })))
      const sent = (path: string) =>
        server.asked.filter((asked) => asked.path === path).map(({ body }): unknown => JSON.parse(body))
      const [first, again] = sent("/v1/ludus/models/toy/sft") as ReadonlyArray<Record<string, unknown>>
      assert.deepInclude(first, { expectedStep: 0, examples, config: { epochs: 2 } } as never)
      assert.match(String(first?.["key"]), /^toy:0:[0-9a-f]{16}$/u)
      assert.deepStrictEqual(again, first)
      assert.deepStrictEqual(sent("/v1/ludus/models/toy/checkpoints/delete"), [{ keepLast: 1 }])
      assert.deepStrictEqual(sent("/v1/ludus/models/toy/export"), [{ dtype: "bf16", destination: "/out" }])
      assert.deepStrictEqual(sent("/v1/ludus/forks"), [{ name: "branch", model: "toy", step: 1, optimizer: true }])
    })
  )

  it.live("what cannot be sent is refused by its field, before anything is sent", () =>
    Effect.gen(function* () {
      const server = yield* fakeBackend()
      const backend = yield* connect({ url: server.url, token: "t-1" })
      const sent = server.asked.length
      const field = <A>(effect: Effect.Effect<A, { readonly field?: string }>) =>
        Effect.map(Effect.flip(effect), (error) => error.field)
      const request = { key: "k", expectedStep: 0, examples, config: {} }
      assert.strictEqual(yield* field(backend.fork({ name: "../up", model: "toy" })), "name")
      assert.strictEqual(yield* field(backend.deleteCheckpoints("a/b", { keepLast: 1 })), "name")
      assert.strictEqual(yield* field(backend.deleteCheckpoints("toy", { steps: [-1] })), "steps.0")
      assert.strictEqual(yield* field(backend.exportModel("toy", { destination: "/x", step: 0.5 })), "step")
      const config = { ...request, config: { learningRate: Number.NaN } }
      assert.strictEqual(yield* field(backend.sft("toy", config)), "config.learningRate")
      assert.strictEqual(server.asked.length, sent)
    })
  )
})
