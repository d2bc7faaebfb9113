import { spawn } from "node:child_process"
import { appendFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { hostname, tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Redacted } from "effect"
import { openRun } from "../src/run/run-directory.ts"
import { fileError } from "../src/run/run-error.ts"
import { trajectory } from "./samples.ts"

const temporary = Effect.acquireRelease(
  Effect.sync(() => mkdtempSync(join(tmpdir(), "ludus-run-"))),
  (directory) => Effect.sync(() => rmSync(directory, { recursive: true, force: true }))
)
const config = { environment: "toy", iterations: 3, training: { learningRate: 6e-4 } }
const lines = (path: string) => readFileSync(path, "utf8").split("\n").slice(0, -1)
const episode = (iteration: number, name: string) => ({
  kind: "episode-finished" as const,
  iteration,
  episode: name,
  trajectories: [trajectory({ id: name })]
})

describe("run directory", () => {
  it.live("stores config, journal and metrics, and says where to go on", () =>
    Effect.gen(function* () {
      const directory = yield* temporary
      yield* Effect.scoped(
        Effect.gen(function* () {
          const run = yield* openRun({ directory, name: "one", config })
          assert.deepInclude(run.resume, { resumed: false, nextIteration: 0, step: 0, episodes: 0 })
          yield* run.append(episode(0, "0/a/0/player"))
          yield* run.append({
            kind: "step-committed",
            iteration: 0,
            key: "one:0",
            step: 1,
            trained: true,
            policy: "toy@1",
            metrics: {},
            reasons: {}
          })
          yield* run.finishIteration({
            iteration: 0,
            step: 1,
            trained: true,
            figures: { "train/reward": 0.5, loss: Number.NaN }
          })
          yield* run.append(episode(1, "1/b/0/player"))
        })
      )
      const run = yield* openRun({ directory, name: "one", config: { ...config, iterations: 99 } })
      assert.deepInclude(run.resume, { resumed: true, nextIteration: 1, step: 1, episodes: 1 })
      assert.deepStrictEqual(run.resume.rows, [
        { "train/reward": 0.5, iteration: 0, step: 1, trained: true, nonFinite: ["loss"] }
      ])
      assert.deepStrictEqual(
        run.resume.unfinished.map((event) => (event.kind === "episode-finished" ? event.trajectories[0] : event.kind)),
        [trajectory({ id: "1/b/0/player" })]
      )
      assert.strictEqual(JSON.parse(readFileSync(join(directory, "one", "config.json"), "utf8")).iterations, 99)
    })
  )

  it.live("keeps every line of many fibers, each whole", () =>
    Effect.gen(function* () {
      const directory = yield* temporary
      const names = Array.from({ length: 200 }, (_, index) => `0/s/${index}/player`)
      yield* Effect.scoped(
        Effect.gen(function* () {
          const run = yield* openRun({ directory, name: "many", config })
          yield* Effect.forEach(names, (name) => run.append(episode(0, name)), { concurrency: 50 })
        })
      )
      const written = lines(join(directory, "many", "journal.jsonl")).map((line) => JSON.parse(line).episode)
      assert.sameMembers(written, names)
    })
  )

  it.live("drops a torn last line, says so, and appends behind the last whole one", () =>
    Effect.gen(function* () {
      const directory = yield* temporary
      const open = openRun({ directory, name: "torn", config })
      yield* Effect.scoped(Effect.flatMap(open, (run) => run.append(episode(0, "whole"))))
      const path = join(directory, "torn", "journal.jsonl")
      appendFileSync(path, '{"v":1,"at":12,"kind":"episo')
      yield* Effect.scoped(
        Effect.gen(function* () {
          const run = yield* open
          assert.deepStrictEqual(run.resume.notices, [
            "journal.jsonl: the last 28 bytes were cut by a crash and are dropped."
          ])
          yield* run.append(episode(0, "after"))
        })
      )
      assert.deepStrictEqual(
        lines(path).map((line) => JSON.parse(line).episode),
        ["whole", "after"]
      )
    })
  )

  it.live("refuses a journal that is damaged in the middle, naming the line", () =>
    Effect.gen(function* () {
      const directory = yield* temporary
      const open = openRun({ directory, name: "damaged", config })
      yield* Effect.scoped(Effect.flatMap(open, (run) => run.append(episode(0, "whole"))))
      const path = join(directory, "damaged", "journal.jsonl")
      writeFileSync(path, `{"v":1,\n${readFileSync(path, "utf8")}`)
      const error = yield* Effect.flip(Effect.scoped(open))
      assert.deepInclude(error, { code: "journal_damaged", field: `${path}:1` })
    })
  )

  it.live("refuses a journal of another version", () =>
    Effect.gen(function* () {
      const directory = yield* temporary
      mkdirSync(join(directory, "old"))
      writeFileSync(join(directory, "old", "journal.jsonl"), '{"v":2,"at":1,"kind":"run-started"}\n')
      const error = yield* Effect.flip(Effect.scoped(openRun({ directory, name: "old", config })))
      assert.deepInclude(error, { code: "journal_version", value: "version 2", expected: "an event of version 1" })
    })
  )

  it.live("refuses other settings on resuming, naming the field", () =>
    Effect.gen(function* () {
      const directory = yield* temporary
      yield* Effect.scoped(openRun({ directory, name: "same", config }))
      const other = { ...config, training: { learningRate: 1e-3 } }
      const error = yield* Effect.flip(Effect.scoped(openRun({ directory, name: "same", config: other })))
      assert.deepInclude(error, {
        code: "config_differs",
        field: "config.training.learningRate",
        value: "0.001",
        expected: "0.0006"
      })
    })
  )

  it.live("refuses a second holder, naming its pid; takes over the lock of a dead process", () =>
    Effect.gen(function* () {
      const directory = yield* temporary
      const open = openRun({ directory, name: "taken", config })
      const error = yield* Effect.scoped(Effect.andThen(open, Effect.flip(Effect.scoped(open))))
      assert.deepInclude(error, { code: "locked", value: String(process.pid) })
      const dead = yield* Effect.callback<number>((resume) => {
        const child = spawn(process.execPath, ["-e", ""])
        child.on("exit", () => resume(Effect.succeed(child.pid ?? 0)))
      })
      const lock = join(directory, "taken", "lock")
      writeFileSync(lock, JSON.stringify({ pid: dead, host: hostname(), started: "1" }))
      yield* Effect.scoped(
        Effect.andThen(
          open,
          Effect.sync(() => assert.strictEqual(JSON.parse(readFileSync(lock, "utf8")).pid, process.pid))
        )
      )
    })
  )

  it.live("takes over a lock whose pid was given to another process", () =>
    Effect.gen(function* () {
      const directory = yield* temporary
      const open = Effect.scoped(openRun({ directory, name: "reused", config }))
      yield* open
      writeFileSync(
        join(directory, "reused", "lock"),
        JSON.stringify({ pid: process.pid, host: hostname(), started: "1" })
      )
      if (process.platform === "linux") yield* open
    })
  )

  it.live("writes no secrets and no number that JSON cannot hold", () =>
    Effect.gen(function* () {
      const directory = yield* temporary
      const secrets = { token: "s3cret-a", judge: { apiKey: "s3cret-b" }, key: Redacted.make("s3cret-c"), maxTokens: 8 }
      yield* Effect.scoped(openRun({ directory, name: "secret", config: secrets }))
      const stored = JSON.parse(readFileSync(join(directory, "secret", "config.json"), "utf8"))
      assert.deepStrictEqual(stored, {
        token: "<redacted>",
        judge: { apiKey: "<redacted>" },
        key: "<redacted>",
        maxTokens: 8
      })
      const error = yield* Effect.flip(
        Effect.scoped(openRun({ directory, name: "nan", config: { rate: [1, Number.NaN] } }))
      )
      assert.deepInclude(error, { code: "invalid_config", field: "config.rate[1]", value: "NaN" })
    })
  )

  it.live("JSON-01: refuses an event with a number that JSON cannot hold", () =>
    Effect.gen(function* () {
      const directory = yield* temporary
      const run = yield* openRun({ directory, name: "finite", config })
      const bad = trajectory({ metrics: { turns: Number.POSITIVE_INFINITY } })
      const error = yield* Effect.flip(
        run.append({ kind: "episode-finished", iteration: 0, episode: "e", trajectories: [bad] })
      )
      assert.strictEqual(error.code, "invalid_event")
      assert.deepStrictEqual(lines(join(run.directory, "journal.jsonl")), [])
    })
  )

  it.live("refuses a name that would become a path", () =>
    Effect.gen(function* () {
      const directory = yield* temporary
      const error = yield* Effect.flip(Effect.scoped(openRun({ directory, name: "../elsewhere", config })))
      assert.strictEqual(error.code, "invalid_name")
    })
  )

  it.live("a SIGKILL loses nothing that was acknowledged, and the next process takes the run over", () =>
    Effect.gen(function* () {
      const directory = yield* temporary
      const acknowledged = yield* Effect.callback<ReadonlyArray<string>, Error>((resume) => {
        const script = fileURLToPath(new URL("fixtures/write-run.ts", import.meta.url))
        const child = spawn(process.execPath, [script, directory])
        let output = ""
        let errors = ""
        child.stderr.on("data", (text: Buffer) => (errors += text.toString()))
        child.stdout.on("data", (text: Buffer) => {
          output += text.toString()
          if (output.split("\n").length > 100) child.kill("SIGKILL")
        })
        child.on("close", () => {
          const names = output.split("\n").slice(0, -1)
          resume(names.length > 0 ? Effect.succeed(names) : Effect.fail(new Error(errors)))
        })
      })
      const run = yield* openRun({ directory, name: "killed", config: {} })
      const kept = run.resume.unfinished.flatMap((event) => (event.kind === "episode-finished" ? [event.episode] : []))
      assert.includeMembers(kept, [...acknowledged])
      assert.isAtLeast(acknowledged.length, 100)
    })
  )

  it.live("notes where the backend keeps each step", () =>
    Effect.gen(function* () {
      const directory = yield* temporary
      const run = yield* openRun({ directory, name: "steps", config })
      yield* run.noteCheckpoint({ step: 1, policy: "toy@1", path: "/state/toy/000001" })
      const [line = ""] = lines(join(run.directory, "checkpoints.jsonl"))
      const { at, ...rest } = JSON.parse(line)
      assert.isNumber(at)
      assert.deepStrictEqual(rest, { step: 1, policy: "toy@1", path: "/state/toy/000001" })
    })
  )

  it("tells a full disk apart, with what to do", () => {
    const error = fileError("/run/journal.jsonl", "append to")(Object.assign(new Error("no space"), { code: "ENOSPC" }))
    assert.deepInclude(error, { code: "disk_full", field: "/run/journal.jsonl", value: "ENOSPC" })
    assert.include(error.advice, "resume the run")
  })
})
