/**
 * `ludus train` as a user runs it, on the real backend with the tiny random model.
 */
import { type ChildProcess, spawn } from "node:child_process"
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { afterAll, assert, describe, it } from "vitest"

const main = fileURLToPath(new URL("../src/main.ts", import.meta.url))
const vowels = fileURLToPath(new URL("./fixtures/vowels.ts", import.meta.url))
const folder = mkdtempSync(join(tmpdir(), "ludus-train-"))
afterAll(() => rmSync(folder, { recursive: true, force: true }))

const start = (...args: ReadonlyArray<string>): ChildProcess & { readonly result: Promise<Ended> } => {
  const child = spawn(
    process.execPath,
    ["--conditions=@ludus/source", main, "train", ...args, "--directory", folder, "--threads", "1"],
    { stdio: ["ignore", "pipe", "pipe"] }
  )
  let stdout = ""
  let stderr = ""
  child.stdout.setEncoding("utf8").on("data", (text) => (stdout += text))
  child.stderr.setEncoding("utf8").on("data", (text) => (stderr += text))
  const result = new Promise<Ended>((resolve) => {
    child.on("close", (code, signal) => resolve({ code, signal, stdout, stderr }))
  })
  return Object.assign(child, { result })
}

interface Ended {
  readonly code: number | null
  readonly signal: string | null
  readonly stdout: string
  readonly stderr: string
}

/** Flags of a small run; those given replace the defaults. */
const small = (given: Readonly<Record<string, string>> = {}): ReadonlyArray<string> =>
  Object.entries({
    "--base": "random",
    "--group-size": "4",
    "--scenarios": "2",
    "--evaluate-every": "0",
    "--final-scenarios": "0",
    ...given
  }).flat()

const rows = (run: string): ReadonlyArray<Readonly<Record<string, unknown>>> => {
  const path = join(folder, run, "metrics.jsonl")
  return existsSync(path)
    ? readFileSync(path, "utf8")
        .split("\n")
        .filter((line) => line !== "")
        .map((line) => JSON.parse(line) as Readonly<Record<string, unknown>>)
    : []
}

const until = async (holds: () => boolean): Promise<void> => {
  while (!holds()) await new Promise((resolve) => setTimeout(resolve, 20))
}

/** Waits for the first finished iteration of a run that goes on. */
const firstIteration = async (child: ReturnType<typeof start>, run: string): Promise<void> => {
  await until(() => rows(run).length > 0 || child.exitCode !== null)
  if (child.exitCode !== null) throw new Error(`the run ended early: ${(await child.result).stderr}`)
}

/** Processes with the run's folder among their arguments: its gateway and its engine. */
const processesOf = (run: string): ReadonlyArray<string> =>
  readdirSync("/proc").filter((pid) => {
    try {
      return /^\d+$/u.test(pid) && readFileSync(`/proc/${pid}/cmdline`, "utf8").includes(join(folder, run, "backend"))
    } catch {
      return false
    }
  })

describe("ludus train", { timeout: 600_000 }, () => {
  it("trains an environment of the user's own, and ends with the run's folder as JSON", async () => {
    const { code, stdout, stderr } = await start(
      vowels,
      "--name",
      "whole",
      "--iterations",
      "2",
      "--json",
      ...small({ "--evaluate-every": "2" })
    ).result
    assert.strictEqual(code, 0, stderr)
    assert.deepStrictEqual(JSON.parse(stdout.trimEnd().split("\n").at(-1) ?? ""), { run: join(folder, "whole") })
    const metrics = rows("whole")
    assert.deepStrictEqual(
      metrics.map(({ iteration, step, trained }) => [iteration, step, trained]),
      [
        [0, 1, true],
        [1, 2, true]
      ]
    )
    for (const name of ["train/reward", "train/reward_std", "loss", "seconds/rollout", "seconds/train"]) {
      for (const row of metrics) assert.isNumber(row[name], name)
    }
    assert.isUndefined(metrics[0]?.["val/reward"])
    assert.isNumber(metrics[1]?.["val/reward"])
  })

  it.runIf(process.platform === "linux")(
    "killed in the middle, it leaves nothing behind and goes on by its name",
    async () => {
      const args = [vowels, "--name", "cut", "--iterations", "4", ...small()]
      const first = start(...args)
      await firstIteration(first, "cut")
      first.kill("SIGKILL")
      await first.result
      const finished = rows("cut").length
      await until(() => processesOf("cut").length === 0)
      const second = await start(...args).result
      assert.strictEqual(second.code, 0, second.stderr)
      assert.include(second.stderr, "Resuming cut@")
      assert.isAtLeast(finished, 1)
      assert.deepStrictEqual(
        rows("cut").map(({ iteration, step }) => [iteration, step]),
        [
          [0, 1],
          [1, 2],
          [2, 3],
          [3, 4]
        ]
      )
    }
  )

  it("resumed, it keeps the settings that it was started with", async () => {
    const started = await start(vowels, "--name", "kept", "--iterations", "1", "--seed", "7", ...small()).result
    assert.strictEqual(started.code, 0, started.stderr)
    const more = await start(vowels, "--name", "kept", "--iterations", "2").result
    assert.strictEqual(more.code, 0, more.stderr)
    assert.deepStrictEqual(
      rows("kept").map(({ iteration, step }) => [iteration, step]),
      [
        [0, 1],
        [1, 2]
      ]
    )
    const done = await start(vowels, "--name", "kept").result
    assert.strictEqual(done.code, 0, done.stderr)
    assert.include(done.stderr, "has finished its 2 iterations already")
  })

  it("ends with 2 on wrong usage", async () => {
    const { code, stderr } = await start(vowels, "--bogus").result
    assert.strictEqual(code, 2)
    assert.include(stderr, "--bogus")
  })

  it("interrupted, it says so, ends with 130, and is resumable; another process is refused meanwhile", async () => {
    const args = [vowels, "--name", "stopped", "--iterations", "40", ...small()]
    const first = start(...args)
    await firstIteration(first, "stopped")
    const other = await start(...args).result
    assert.strictEqual(other.code, 1)
    assert.include(other.stderr, String(first.pid))
    first.kill("SIGINT")
    const ended = await first.result
    assert.strictEqual(ended.code, 130, ended.stderr)
    assert.include(ended.stderr, "the same name resumes the run")
    assert.deepStrictEqual(processesOf("stopped"), [])
  })

  it.each([
    [{ "--group-size": "1" }, "Option groupSize is 1"],
    [{ "--name": "../escape" }, "Option name is"],
    [{ "--base": "./no-such-folder" }, "no-such-folder"],
    [{ "--base": "rondom" }, "Option base is"],
    [{ "--learning-rate": "-1" }, "Option train.learningRate is -1"]
  ])("refuses %j with a message that names it", async (flags, message) => {
    const { code, stderr } = await start(vowels, "--iterations", "1", ...small(flags)).result
    assert.strictEqual(code, 1)
    assert.include(stderr, message)
    assert.notInclude(stderr, "    at ")
  })
})
