/**
 * Budgets for failures: a run that only burns money ends, with the root cause of the first failure.
 */
import { Option, Schema } from "effect"
import { FailureKind, type Trajectory } from "./trajectory.ts"

/** The budget of one kind of failure is used up. */
export class FailureBudgetExceeded extends Schema.TaggedError<FailureBudgetExceeded>()("FailureBudgetExceeded", {
  kind: FailureKind,
  /** The first trajectory that failed so. */
  trajectory: Schema.String,
  failures: Schema.Natural,
  episodes: Schema.Natural,
  cause: Schema.String,
  stack: Schema.optionalKey(Schema.String),
  advice: Schema.String
}) {
  override get message() {
    return `${this.failures} of ${this.episodes} episodes failed (${this.kind}), first ${this.trajectory}: ${this.cause.replace(/\.$/u, "")}. ${this.advice}`
  }
}

export interface FailureBudgets {
  /** Share of a run's episodes whose environment or reward may throw, from the second iteration on. Default 0.05. */
  readonly environment?: number
  /** Share of one iteration's episodes that infrastructure may take. Default 0.5. */
  readonly infrastructure?: number
}

const ADVICE: Record<FailureKind, string> = {
  environment: "Mend the environment; the same name then resumes the run.",
  reward: "Mend the reward function; the same name then resumes the run.",
  infrastructure: "Look at the backend's log; the run can be resumed by its name.",
  judge: "Look at the judge's endpoint; the run can be resumed by its name."
}

/**
 * Looks at a finished iteration. Failures of the environment and of its rewards share a budget: none in the first
 * iteration, a share of the run's episodes after.
 */
export const checkBudgets = (
  iteration: number,
  trajectories: ReadonlyArray<Trajectory>,
  before: { readonly episodes: number; readonly environmentFailures: number },
  budgets: FailureBudgets
): Option.Option<FailureBudgetExceeded> => {
  const failed = trajectories.filter((trajectory) => trajectory.failure !== undefined)
  const own = failed.filter(({ failure }) => failure?.kind === "environment" || failure?.kind === "reward")
  const lost = failed.filter(({ failure }) => failure?.kind === "infrastructure")
  const episodes = before.episodes + trajectories.length
  const ownFailures = before.environmentFailures + own.length
  const allowed = iteration === 0 ? 0 : (budgets.environment ?? 0.05) * episodes
  if (own.length > 0 && ownFailures > allowed) return Option.some(exceeded(own, ownFailures, episodes))
  if (lost.length > (budgets.infrastructure ?? 0.5) * trajectories.length) {
    return Option.some(exceeded(lost, lost.length, trajectories.length))
  }
  return Option.none()
}

const exceeded = (failed: ReadonlyArray<Trajectory>, failures: number, episodes: number) => {
  const first = failed[0]
  const kind = first?.failure?.kind ?? "environment"
  return new FailureBudgetExceeded({
    kind,
    trajectory: first?.id ?? "",
    failures,
    episodes,
    cause: first?.failure?.message ?? "",
    ...(first?.failure?.stack === undefined ? {} : { stack: first.failure.stack }),
    advice: ADVICE[kind]
  })
}
