import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assert, describe, layer } from "@effect/vitest"
import { Effect, Fiber } from "effect"
import { Backend } from "../src/backend/backend.ts"
import { readChatBytes } from "../src/data/read-chat-file.ts"
import { type Exchange, hashIds } from "../src/exchange.ts"
import { gatherGroups } from "../src/gather.ts"
import { toScoredGroup } from "../src/group.ts"
import type { Message } from "../src/message.ts"
import { ContextOverflow } from "../src/policy.ts"
import * as TrainableModel from "../src/trainable-model.ts"
import { toTrainRequest } from "../src/train-request.ts"
import { layerLive, python } from "./live-backend.ts"

const user = (content: string) => ({ role: "user" as const, content })
const turn = (index: number, maxTokens = 8) => ({
  turn: index,
  maxTokens,
  temperature: 1,
  seed: 40 + index,
  train: true
})
const tiny = (name: string) => TrainableModel.make({ name, base: { source: "random" }, lora: { rank: 4, alpha: 8 } })

describe.skipIf(python === undefined)("with the real backend", () => {
  layer(layerLive, { timeout: "2 minutes", excludeTestServices: true })("", (it) => {
    it.effect(
      "a conversation's ids extend each other; the same seed gives the same sample",
      () =>
        Effect.gen(function* () {
          const model = yield* tiny("talk").register
          const converse = Effect.scoped(
            Effect.gen(function* () {
              const conversation = yield* model.policy().open({ id: "0/s/0", seat: "player" })
              const first: ReadonlyArray<Message> = [{ role: "system", content: "Be brief." }, user("One?")]
              const one = yield* conversation.ask(first, turn(0))
              const two = yield* conversation.ask([...first, one.reply, user("Two?")], turn(1))
              return [one, two] as const
            })
          )
          const [one, two] = yield* converse
          assert.strictEqual(one.policy, "talk@0")
          assert.strictEqual(one.parent, null)
          assert.strictEqual(two.parent, one.id)
          const all = [
            ...(one.tokens?.promptIds ?? []),
            ...(one.tokens?.sampledIds ?? []),
            ...(two.tokens?.promptIds ?? [])
          ]
          assert.strictEqual(two.tokens?.prefixHash, hashIds(all))
          assert.isAtMost(one.tokens?.sampledIds.length ?? 99, 8)
          assert.isTrue(one.tokens?.logprobs.every((logprob) => logprob < 0))
          const [again] = yield* converse
          assert.deepStrictEqual(again.tokens?.sampledIds, one.tokens?.sampledIds)
          assert.deepStrictEqual(again.reply, one.reply)
        }),
      60_000
    )

    it.effect(
      "a loop by hand trains: the step moves, its name answers, a repeat trains nothing",
      () =>
        Effect.gen(function* () {
          const backend = yield* Backend
          const model = yield* tiny("loop").register
          const groups = yield* gatherGroups(["red", "blue"], 3, (scenario, { seed }) =>
            Effect.gen(function* () {
              const episode = yield* model.openaiForEpisode()
              const reply = yield* Effect.tryPromise(() =>
                episode.openai.chat.completions.create({
                  model: model.inferenceName(),
                  messages: [user(scenario)],
                  max_completion_tokens: 6,
                  seed
                })
              )
              return { exchanges: episode.exchanges(), reward: (reply.choices[0]?.message.content ?? "").length }
            })
          )
          const request = toTrainRequest(
            groups.map((group) => toScoredGroup(group)),
            {
              key: "loop:0",
              expectedStep: 0,
              config: { learningRate: 1e-3 }
            }
          )
          assert.strictEqual(request._tag, "Success")
          const result = yield* model.train(groups, { learningRate: 1e-3 })
          assert.deepInclude(result, { step: 1, trained: true, repeated: false, policy: "loop@1" })
          assert.isTrue(Number.isFinite(result.metrics["loss"]))
          const { sampledIds } = yield* Effect.scoped(
            Effect.gen(function* () {
              const conversation = yield* model.policy(1).open({ id: "after", seat: "player" })
              const { policy, tokens } = yield* conversation.ask([user("red")], turn(0))
              assert.strictEqual(policy, "loop@1")
              return tokens ?? assert.fail("no ids")
            })
          )
          assert.isNotEmpty(sampledIds)
          assert.deepStrictEqual(
            (yield* backend.checkpoints("loop")).map(({ step }) => step),
            [0, 1]
          )
          if (request._tag !== "Success") return
          const conflict = yield* Effect.flip(backend.train("loop", { ...request.success.request, key: "other" }))
          assert.strictEqual(conflict.code, "step_conflict")
          // The same groups by hand: the reasons say that they are of an older step.
          const old = yield* model.train(groups, { learningRate: 1e-3 })
          assert.deepInclude(old, { step: 1, trained: false })
          assert.strictEqual(old.reasons["stale"], 6)
          const late = { ...request.success.request, key: "late", expectedStep: 1 }
          // Sampled by step 0: by default nothing older than the model is trained.
          const { reasons, trained } = yield* backend.train("loop", late)
          assert.isFalse(trained)
          assert.isAbove(reasons["stale"] ?? 0, 0)
          const next = { ...late, key: "again", config: { learningRate: 1e-3, maxStaleness: 1 } }
          assert.deepInclude(yield* backend.train("loop", next), { step: 2, repeated: false })
          assert.deepInclude(yield* backend.train("loop", next), { step: 2, repeated: true })
        }),
      120_000
    )

    it.effect(
      "DATA-02: a chat file is learned, then forked, exported and thinned out",
      () =>
        Effect.gen(function* () {
          const model = yield* tiny("taught").register
          const call = { id: "c", type: "function", function: { name: "f", arguments: { a: 1 } } }
          const row = {
            messages: [
              { role: "developer", content: "d" },
              { role: "user", content: "u" },
              { role: "assistant", weight: 0, content: "skip" },
              { role: "user", content: "u2" },
              { role: "assistant", tool_calls: [call] },
              { role: "tool", tool_call_id: "c", content: [{ type: "text", text: "r" }] },
              { role: "assistant", content: "end" }
            ],
            tools: [{ type: "function", function: { name: "f", parameters: { type: "object", properties: {} } } }]
          }
          const { examples } = readChatBytes("rows.jsonl", new TextEncoder().encode(JSON.stringify(row)))
          const config = { epochs: 3, learningRate: 0.02, schedule: "cosine" as const }
          const result = yield* model.sft(examples, config)
          assert.deepInclude(result, { step: 3, trained: true, repeated: false, policy: "taught@3" })
          assert.isBelow(result.metrics["sft/loss"] ?? 99, result.metrics["sft/first_loss"] ?? 0)
          assert.deepInclude(yield* model.sft(examples, config, { from: 0 }), { step: 3, repeated: true })

          const branch = yield* TrainableModel.fork({ name: "branch", model: "taught", step: 2 })
          assert.strictEqual(yield* branch.step, 0)
          assert.strictEqual((yield* branch.sft(examples, { ...config, train: "last" })).step, 3)

          const folder = mkdtempSync(join(tmpdir(), "ludus-export-"))
          const exported = yield* model.exportTo(join(folder, "model"), { dtype: "fp32" })
          assert.includeMembers(
            [...exported.files],
            ["config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"]
          )
          rmSync(folder, { recursive: true })
          const best = { metric: "sft/loss", mode: "min" as const }
          const { deleted, kept } = yield* model.deleteCheckpoints({ keepLast: 1, keepBest: best })
          assert.deepStrictEqual(deleted, [0, 1, 2])
          assert.deepStrictEqual(kept, [{ step: 3, reason: "newest" }])
        }),
      120_000
    )

    it.effect(
      "a streamed reply has the ids of the plain one",
      () =>
        Effect.gen(function* () {
          const model = yield* tiny("stream").register
          const sample = (stream: boolean) =>
            Effect.scoped(
              Effect.gen(function* () {
                const { exchanges, openai } = yield* model.openaiForEpisode()
                const body = { model: "stream", messages: [user("Say it.")], max_completion_tokens: 12, seed: 3 }
                yield* Effect.tryPromise(async () => {
                  if (!stream) return void (await openai.chat.completions.create(body))
                  for await (const _ of await openai.chat.completions.create({ ...body, stream: true })) continue
                })
                const [exchange] = exchanges()
                return {
                  reply: exchange?.reply.content,
                  ids: exchange?.tokens?.sampledIds,
                  prompt: exchange?.tokens?.promptIds
                }
              })
            )
          assert.deepStrictEqual(yield* sample(true), yield* sample(false))
        }),
      60_000
    )

    it.effect(
      "a stream that its reader leaves early is recorded whole",
      () =>
        Effect.scoped(
          Effect.gen(function* () {
            const model = yield* tiny("leaves").register
            const body = { model: "leaves", messages: [user("Say it.")], max_completion_tokens: 12, seed: 3 }
            const plain = yield* model.openaiForEpisode()
            yield* Effect.tryPromise(() => plain.openai.chat.completions.create(body))
            const left = yield* model.openaiForEpisode()
            yield* Effect.tryPromise(async () => {
              for await (const _ of await left.openai.chat.completions.create({ ...body, stream: true })) break
            })
            const ids = (exchanges: ReadonlyArray<Exchange>) => exchanges.map(({ tokens }) => tokens?.sampledIds)
            assert.deepStrictEqual(ids(yield* left.finished), ids(plain.exchanges()))
          })
        ),
      60_000
    )

    it.effect(
      "LOOP-10: a prompt that does not fit is an ending; a greedy trained request is a refusal",
      () =>
        Effect.scoped(
          Effect.gen(function* () {
            const model = yield* tiny("long").register
            const conversation = yield* model.policy().open({ id: "long", seat: "player" })
            const long = user("word ".repeat(model.info.contextLength))
            assert.instanceOf(yield* Effect.flip(conversation.ask([long], turn(0))), ContextOverflow)
            const greedy = yield* Effect.flip(conversation.ask([user("x")], { ...turn(1), temperature: 0 }))
            assert.deepInclude(greedy, { _tag: "PolicyFailure", status: 400, attempts: 1 })
          })
        ),
      60_000
    )

    it.effect(
      "EP-07: an interrupted episode leaves the backend free for the next",
      () =>
        Effect.gen(function* () {
          const model = yield* tiny("stop").register
          const ask = (id: string, maxTokens: number) =>
            Effect.scoped(
              Effect.flatMap(model.policy().open({ id, seat: "player" }), (conversation) =>
                conversation.ask([user("Go on.")], turn(0, maxTokens))
              )
            )
          const long = yield* Effect.forkChild(
            Effect.forEach(["a", "b", "c"], (id) => ask(id, 100_000), { concurrency: 3 })
          )
          yield* Effect.sleep("200 millis")
          yield* Fiber.interrupt(long)
          assert.strictEqual((yield* ask("d", 2)).tokens?.sampledIds.length, 2)
        }),
      60_000
    )
  })
})
