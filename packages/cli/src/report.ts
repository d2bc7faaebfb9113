/**
 * The end of a training, for people: the curve, the held-out table, where the run lies.
 */
import type { EnvironmentReport } from "@ludus/env"
import { chart, table } from "./chart.ts"
import { ownFigures } from "./progress-view.ts"

const rewardsOf = (report: EnvironmentReport): ReadonlyArray<number> =>
  report.metrics.flatMap((row) => (typeof row["train/reward"] === "number" ? [row["train/reward"]] : []))

const evaluationTable = (report: EnvironmentReport): string => {
  const own = ownFigures(
    "val",
    Object.fromEntries(
      Object.entries(report.evaluations[0]?.figures ?? {}).map(([name, value]) => [`val/${name}`, value])
    )
  )
  const names = own.map(([name]) => name)
  return table(
    ["player", "temperature", "reward", "std. error", ...names],
    report.evaluations.map(({ figures, policy, reward, standardError, temperature }) => [
      policy,
      policy.includes("@") ? (temperature === 0 ? "greedy" : String(temperature)) : "-",
      reward.toFixed(3),
      Number.isFinite(standardError) ? standardError.toFixed(3) : "-",
      ...names.map((name) => figures[name]?.toFixed(3) ?? "-")
    ])
  )
}

export const renderReport = (report: EnvironmentReport): string => {
  const episodes = report.evaluations[0]?.figures["episodes"] ?? 0
  return [
    "",
    "Mean reward by iteration",
    chart(rewardsOf(report)),
    ...(report.evaluations.length === 0 ? [] : ["", `${episodes} held-out episodes each`, evaluationTable(report)]),
    "",
    `Run         ${report.directory}`,
    `Checkpoint  ${report.checkpoint} (${report.policy})`
  ].join("\n")
}
