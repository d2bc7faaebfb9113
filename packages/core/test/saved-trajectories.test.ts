import { mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Schema } from "effect"
import { readSavedTrajectories } from "../src/data/saved-trajectories.ts"
import { type JournalEntry, JournalEvent } from "../src/run/journal-event.ts"
import type { Trajectory } from "../src/trajectory.ts"
import { exchange, trajectory } from "./samples.ts"

const scored = (total: number) => ({ _tag: "Scored" as const, total, terms: {} })
const user = (content: string) => ({ role: "user" as const, content })
const reply = (content: string) => ({ role: "assistant" as const, content })

const journal = (entries: ReadonlyArray<JournalEntry>) =>
  Effect.acquireRelease(
    Effect.sync(() => {
      const path = join(mkdtempSync(join(tmpdir(), "ludus-journal-")), "journal.jsonl")
      const lines = entries.map((entry) =>
        JSON.stringify(Schema.encodeUnknownSync(JournalEvent)({ v: 1, at: 0, ...entry }))
      )
      writeFileSync(path, `${lines.join("\n")}\n`)
      return path
    }),
    (path) => Effect.sync(() => rmSync(join(path, ".."), { recursive: true }))
  )

const finished = (...trajectories: ReadonlyArray<Trajectory>): JournalEntry => ({
  kind: "episode-finished",
  iteration: 0,
  episode: "e",
  trajectories
})
const member = (index: number, total: number, more: Partial<Trajectory> = {}): Trajectory => ({
  ...trajectory({ id: `0/s/${index}/player`, member: index, exchanges: [exchange({ reply: reply(`said ${index}`) })] }),
  reward: scored(total),
  ...more
})

describe("saved trajectories", () => {
  it.live("the best of each group above the threshold are taken, by the final reward of the group", () =>
    Effect.gen(function* () {
      const path = yield* journal([
        finished(member(0, 0.2), member(1, 0.9)),
        finished(member(2, 0.8)),
        finished(member(3, 1, { reward: { _tag: "Unscored", reason: "judge_failed", detail: "silent" } })),
        finished(member(4, 0.7, { group: "t/player" })),
        {
          kind: "group-scored",
          iteration: 0,
          group: "s/player",
          members: [{ trajectory: "0/s/1/player", reward: scored(0.1) }],
          dropped: null
        }
      ])
      const { examples, ...counts } = yield* readSavedTrajectories(path, { minReward: 0.5, bestOf: 1 })
      assert.deepStrictEqual(counts, { found: 5, taken: 2, unscored: 1 })
      assert.deepStrictEqual(
        examples.map(({ messages }) => messages.at(-1)),
        [
          { role: "assistant", content: "said 2", weight: 1 },
          { role: "assistant", content: "said 4", weight: 1 }
        ]
      )
      assert.strictEqual((yield* readSavedTrajectories(path)).taken, 4)
      assert.strictEqual((yield* readSavedTrajectories(path, { seat: "other" })).found, 0)
    })
  )

  it.live("turns become one conversation; a fork repeats its history without training it twice", () =>
    Effect.gen(function* () {
      const turn = (id: string, parent: string | null, more: Parameters<typeof exchange>[0] = {}) =>
        exchange({ id, parent, messages: [user(`ask ${id}`)], reply: reply(`say ${id}`), ...more })
      const path = yield* journal([
        finished(
          member(0, 1, {
            exchanges: [turn("a", null), turn("b", "a"), turn("c", "a"), turn("d", "b", { finishReason: "length" })]
          })
        )
      ])
      const tools = [{ type: "function" as const, function: { name: "f" } }]
      const { examples } = yield* readSavedTrajectories(path, { tools })
      const say = (id: string, weight: 0 | 1) => ({ ...reply(`say ${id}`), weight })
      assert.deepStrictEqual(examples, [
        { messages: [user("ask a"), say("a", 1), user("ask c"), say("c", 1)], tools },
        {
          messages: [user("ask a"), say("a", 0), user("ask b"), say("b", 1), user("ask d"), say("d", 0)],
          tools
        }
      ])
    })
  )

  it.live("replies of a model without ids stand in full requests: each is trained once, as the last turn", () =>
    Effect.gen(function* () {
      const path = yield* journal([
        finished(
          member(0, 1, {
            exchanges: [
              exchange({ id: "1", messages: [user("q1")], reply: reply("a1") }),
              exchange({ id: "2", messages: [user("q1"), reply("a1"), user("q2")], reply: reply("a2") })
            ]
          })
        )
      ])
      const { examples } = yield* readSavedTrajectories(path)
      const weights = examples.map(({ messages }) =>
        messages.map((message) => ("weight" in message ? message.weight : "-"))
      )
      assert.deepStrictEqual(weights, [
        ["-", 1],
        ["-", 0, "-", 1]
      ])
    })
  )
})
