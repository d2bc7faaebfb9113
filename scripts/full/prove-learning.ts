/**
 * Proof that learning is real: three seeds must rise, and two controls (learning rate 0, rewards shuffled inside their
 * groups) must not. Every run is `npm start` itself; the figures are read from its run directory.
 */
import { spawnSync } from "node:child_process"
import { readFileSync } from "node:fs"
import { join } from "node:path"
import { ROOT } from "../bootstrap/child.mjs"

const iterations = process.env.LUDUS_PROOF_ITERATIONS ?? "24"

const mean = (values: ReadonlyArray<number>) => values.reduce((sum, value) => sum + value, 0) / values.length
/** Sample variance. */
const variance = (values: ReadonlyArray<number>) =>
  values.reduce((sum, value) => sum + (value - mean(values)) ** 2, 0) / (values.length - 1)

const lines = (path: string) =>
  readFileSync(path, "utf8")
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line))

/** Trains once; gives the folder of the run. */
const train = (name: string, args: ReadonlyArray<string>): string => {
  process.stderr.write(`\n=== ${name}\n`)
  const child = spawnSync(
    "npm",
    ["start", "--silent", "--", "--iterations", iterations, "--evaluate-every", "0", "--json", ...args],
    {
      cwd: ROOT,
      encoding: "utf8",
      stdio: ["ignore", "pipe", "inherit"]
    }
  )
  if (child.status !== 0) throw new Error(`${name} ended with exit code ${child.status}`)
  return String(JSON.parse(child.stdout.trimEnd().split("\n").at(-1) ?? "").run)
}

/** The gain from the first quarter of iterations to the last, with its standard error. */
const gainOf = (run: string) => {
  const rows = lines(join(run, "metrics.jsonl"))
  const rewards = rows.map((row) => row["train/reward"])
  const quarter = Math.max(2, Math.floor(rewards.length / 4))
  const [first, last] = [rewards.slice(0, quarter), rewards.slice(-quarter)]
  return {
    gain: mean(last) - mean(first),
    error: Math.sqrt(variance(first) / quarter + variance(last) / quarter),
    seconds: rows.reduce((sum, row) => sum + row["seconds/rollout"] + row["seconds/train"], 0)
  }
}

/** Held-out games after training, per player and temperature. */
const evaluationsOf = (run: string) =>
  lines(join(run, "journal.jsonl"))
    .filter((event) => event.kind === "evaluation-finished" && event.temperature !== undefined)
    .map(({ episodes, metrics, policy, temperature }) => ({
      player: policy.includes("@")
        ? `${policy.endsWith("@0") ? "untrained" : "trained"} ${temperature === 0 ? "greedy" : `T = ${temperature}`}`
        : policy,
      reward: `${metrics.reward.toFixed(3)} ± ${(metrics.reward_std / Math.sqrt(episodes - 1)).toFixed(3)}`,
      win: metrics.win?.toFixed(3),
      format: metrics.format?.toFixed(3),
      legal: metrics.legal?.toFixed(3)
    }))

const results: Array<boolean> = []
const check = (name: string, holds: boolean, figure: string) => {
  results.push(holds)
  process.stdout.write(`${holds ? "pass" : "FAIL"}  ${name}: ${figure}\n`)
}

const gains = [0, 1, 2].map((seed) => {
  const run = train(`seed ${seed}`, ["--seed", String(seed)])
  const { error, gain, seconds } = gainOf(run)
  check(
    `seed ${seed} rises by more than 2 standard errors`,
    gain > 2 * error,
    `${gain.toFixed(3)} (standard error ${error.toFixed(3)}), ${seconds.toFixed(0)} s of training`
  )
  console.table(evaluationsOf(run))
  return gain
})
const spread = Math.sqrt(variance(gains))
check(
  "the mean gain is more than twice the spread of the gains",
  mean(gains) > 2 * spread,
  `${mean(gains).toFixed(3)} against ${spread.toFixed(3)}`
)

const controls: ReadonlyArray<readonly [string, ReadonlyArray<string>]> = [
  ["learning rate 0", ["--learning-rate", "0"]],
  ["shuffled rewards", ["--shuffle-rewards"]]
]
for (const [name, args] of controls) {
  const { error, gain } = gainOf(train(name, [...args, "--seed", "0", "--final-scenarios", "0"]))
  check(`${name} does not rise`, gain <= 2 * error, `${gain.toFixed(3)} (standard error ${error.toFixed(3)})`)
}

const failed = results.filter((holds) => !holds).length
process.stdout.write(`${results.length - failed} passed, ${failed} failed\n`)
process.exitCode = failed === 0 ? 0 : 1
