/**
 * Progress for people, on standard error: one living line on a terminal, plain lines where it is piped.
 */
import { Progress } from "@ludus/core"
import { Effect } from "effect"
import { sparkline } from "./chart.ts"

export interface Output {
  readonly write: (text: string) => void
  readonly isTerminal: boolean
}

const standardError: Output = {
  write: (text) => {
    process.stderr.write(text)
  },
  isTerminal: process.stderr.isTTY
}

const bar = (done: number, total: number, width = 20) => {
  const full = total === 0 ? width : Math.round((done / total) * width)
  return "█".repeat(full) + "░".repeat(width - full)
}

/** Figures that every environment has; what is left are the environment's own. */
const COMMON = new Set([
  "reward",
  "reward_std",
  "episodes",
  "unscored",
  "truncated",
  "turns",
  "sampled_tokens",
  "unparsed_replies",
  "illegal_actions"
])

/** The environment's own figures of a split, at most five. */
export const ownFigures = (
  split: string,
  metrics: Readonly<Record<string, number>>
): ReadonlyArray<readonly [string, number]> =>
  Object.entries(metrics)
    .filter(([name]) => name.startsWith(`${split}/`))
    .map(([name, value]) => [name.slice(split.length + 1), value] as const)
    .filter(([name]) => !COMMON.has(name) && !name.includes("/"))
    .slice(0, 5)

/** Causes of groups without signal, and reasons of a skipped update, with their counts. */
const whyNot = (metrics: Readonly<Record<string, number>>): string => {
  const causes = Object.entries(metrics).flatMap(([name, count]) => {
    const [prefix, cause = ""] = name.split("/")
    return prefix === "groups" && cause !== "total" && cause !== "trained" ? [`${count} groups ${cause}`] : []
  })
  const reasons = Object.keys(metrics).flatMap((name) => (name.startsWith("skipped/non_finite") ? [name.slice(8)] : []))
  return [...causes, ...reasons].join(", ") || "no group to train"
}

const figure = (value: number | undefined) => (value === undefined ? "-" : value.toFixed(3))

/** A sink that writes lines; `living` lines replace each other on a terminal. */
export const progressView = (output: Output = standardError): Progress.ProgressSink => {
  const rewards: Array<number> = []
  let iterations: number | null = null
  let living = false
  const line = (text: string) => {
    if (living) output.write("\r\u001b[K")
    living = false
    output.write(`${text}\n`)
  }
  const live = (text: string) => {
    if (!output.isTerminal) return
    output.write(`\r\u001b[K${text}`)
    living = true
  }
  const of = (iteration: number) => `iteration ${iteration + 1}${iterations === null ? "" : `/${iterations}`}`
  return {
    publish: (event) =>
      Effect.sync(() => {
        switch (event._tag) {
          case "RunStarted":
            iterations = event.iterations
            rewards.push(...event.rewards)
            line(
              `${event.resumed ? "Resuming" : "Training"} ${event.policy} on ${event.environment}; the run lies in ${event.directory}`
            )
            return
          case "IterationStarted":
            return live(`${of(event.iteration)}  rollouts ${bar(0, event.episodes)} 0/${event.episodes}`)
          case "EpisodeFinished":
            return live(`${of(event.iteration)}  rollouts ${bar(event.done, event.total)} ${event.done}/${event.total}`)
          case "TrainProgress":
            return live(
              `${of(event.iteration)}  ${event.phase} ${bar(event.done, event.total)} ${event.done}/${event.total}`
            )
          case "IterationFinished": {
            const { metrics } = event
            const reward = metrics["train/reward"]
            if (reward !== undefined) rewards.push(reward)
            line(
              [
                of(event.iteration),
                `step ${event.step}${event.trained ? "" : ` (not trained: ${whyNot(metrics)})`}`,
                `reward ${figure(reward)}`,
                ...ownFigures("train", metrics).map(([name, value]) => `${name} ${value.toFixed(2)}`),
                `groups ${metrics["groups/trained"] ?? 0}/${metrics["groups/total"] ?? 0}`,
                `rollouts ${(metrics["seconds/rollout"] ?? 0).toFixed(1)} s`,
                `update ${(metrics["seconds/train"] ?? 0).toFixed(1)} s`,
                sparkline(rewards)
              ].join("  ")
            )
            return
          }
          case "EvaluationFinished":
            return line(
              [
                `  evaluation of ${event.policy}${event.temperature === undefined || !event.policy.includes("@") ? "" : event.temperature === 0 ? ", greedy" : `, T = ${event.temperature}`}`,
                `${event.episodes} held-out episodes`,
                `reward ${figure(event.metrics["val/reward"] ?? event.metrics["reward"])}`
              ].join("  ")
            )
          case "Notice":
            return line(`${event.level === "info" ? "" : `${event.level}: `}${event.message}`)
          case "Stalled":
            return line(
              `waiting: episode ${event.episode}, turn ${event.turn}, has waited ${Math.round(event.seconds)} s for ${event.waitingFor}`
            )
          case "RunEnded":
            return line(
              event.reason === "completed"
                ? `Done: ${event.iterations} iterations, step ${event.step}.${event.step === 0 && event.iterations > 0 ? " No update was made: no group had differing rewards." : ""}`
                : event.reason === "interrupted"
                  ? `Stopped after ${event.iterations} iterations, step ${event.step}; the same name resumes the run.`
                  : `Failed after ${event.iterations} iterations, step ${event.step}.`
            )
          default:
            return
        }
      })
  }
}
