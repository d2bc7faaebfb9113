/**
 * The training loop: collect a batch, score its groups, make one update, record it, go on. It knows neither environments
 * nor engines: a batch is collected by the caller, an update is made by the backend.
 *
 * The unit of resuming is the iteration: it is finished when its row stands in `metrics.jsonl`.
 */
import { Cause, Clock, Effect, Exit, Option, Result, Schema } from "effect"
import type { BackendError, BackendService } from "./backend/backend.ts"
import type { RegisterModel, TrainConfig, TrainResult } from "./backend/protocol.ts"
import { batchFigures, groupFigures } from "./batch-figures.ts"
import { checkBudgets, type FailureBudgetExceeded, type FailureBudgets } from "./failure-budget.ts"
import { type Group, type ScoredGroup, toScoredGroup } from "./group.ts"
import type { Policy } from "./policy.ts"
import * as Progress from "./progress.ts"
import type { JournalEvent } from "./run/journal-event.ts"
import type { Run } from "./run/run-directory.ts"
import type { MetricsRow } from "./run/metrics.ts"
import type { RunError } from "./run/run-error.ts"
import { type InvalidTrainRequest, toTrainRequest, withLeftOut } from "./train-request.ts"
import type { Trajectory } from "./trajectory.ts"

export interface PlannedScenario {
  readonly id: string
  readonly seed: number
  /** Encoded by the environment's Schema. */
  readonly input: unknown
}

/** What one iteration will play. */
export interface Plan {
  readonly scenarios: ReadonlyArray<PlannedScenario>
  readonly episodes: number
}

export interface CollectOptions {
  readonly iteration: number
  readonly policy: Policy
  /** Episodes that an earlier session of the run has finished under this same policy. */
  readonly finished: ReadonlyMap<string, ReadonlyArray<Trajectory>>
  /** To be called once per finished episode, before its group is scored. */
  readonly onEpisode: (episode: string, trajectories: ReadonlyArray<Trajectory>) => Effect.Effect<void, RunError>
}

export interface TrainingLoop<E, R> {
  readonly run: Run
  readonly environment: string
  readonly backend: BackendService
  readonly model: RegisterModel
  /** The run ends when this many iterations are finished, earlier sessions included. */
  readonly iterations: number
  readonly config: TrainConfig
  readonly maskTruncated: boolean
  readonly budgets: FailureBudgets
  readonly plan: (iteration: number) => Effect.Effect<Plan, E, R>
  readonly collect: (options: CollectOptions) => Effect.Effect<ReadonlyArray<Group>, E, R>
  /** Totals that mean "all solved" and "all failed", to name the cause of a group without variance. */
  readonly rewardBounds: { readonly solved: number; readonly failed: number } | undefined
  /** Changes groups before they are sent, for controls such as shuffled rewards. */
  readonly transformGroups?: (iteration: number, groups: ReadonlyArray<ScoredGroup>) => ReadonlyArray<ScoredGroup>
  /** Evaluates after every `every` iterations, and after the last one; 0 turns it off. */
  readonly evaluate: {
    readonly every: number
    readonly run: (policy: Policy, iteration: number) => Effect.Effect<ReadonlyArray<Trajectory>, E, R>
  }
}

export interface TrainReport {
  readonly run: string
  readonly directory: string
  /** `name@step` of the newest weights. */
  readonly policy: string
  readonly step: number
  readonly iterations: number
  /** Where the newest checkpoint lies, on the backend's machine. */
  readonly checkpoint: string
  /** One row per finished iteration, earlier sessions included. */
  readonly metrics: ReadonlyArray<MetricsRow>
}

/** Updates were not finite several times in a row: the weights are whole, but nothing is learned. */
export class NonFiniteUpdates extends Schema.TaggedError<NonFiniteUpdates>()("NonFiniteUpdates", {
  iterations: Schema.Natural,
  /** Trajectories of the last batch. */
  trajectories: Schema.Array(Schema.String),
  advice: Schema.String
}) {
  override get message() {
    const shown = this.trajectories.slice(0, 8).join(", ")
    return `${this.iterations} updates in a row had a loss or gradient that is not finite; the last batch: ${shown}. ${this.advice}`
  }
}

/** Updates that may be skipped in a row because they are not finite. */
const MOST_NON_FINITE = 3

export type TrainingError = BackendError | RunError | InvalidTrainRequest | FailureBudgetExceeded | NonFiniteUpdates

/** Runs iterations until the bound is met. Interrupting it is safe: what is in the journal is not lost. */
export const runTrainingLoop = Effect.fn("TrainingLoop.run")(function* <E, R>(loop: TrainingLoop<E, R>) {
  const { backend, run } = loop
  const info = yield* backend.register(loop.model)
  const policyAt = (step: number) => `${loop.model.name}@${step}`
  for (const message of [...run.resume.notices, ...info.notices]) yield* Progress.notice("warning", message)
  if (run.resume.nextIteration >= loop.iterations && run.resume.resumed) {
    yield* Progress.notice(
      "info",
      `This run has finished its ${run.resume.nextIteration} iterations already; ask for more iterations, or give another name.`
    )
  }
  if (info.step < run.resume.step) {
    yield* Progress.notice(
      "warning",
      `The backend's newest whole checkpoint is step ${info.step}; the run had reached ${run.resume.step}. It goes on from ${info.step}.`
    )
  }
  const state = {
    step: info.step,
    rows: [...run.resume.rows],
    checkpoint: info.checkpoint,
    episodes: run.resume.episodes,
    environmentFailures: run.resume.failures.environment + run.resume.failures.reward,
    nonFinite: 0
  }
  const first = run.resume.nextIteration
  yield* run.append({
    kind: "run-started",
    run: run.name,
    environment: loop.environment,
    model: loop.model.name,
    step: state.step,
    iteration: first,
    resumed: run.resume.resumed
  })
  yield* Progress.publish({
    _tag: "RunStarted",
    run: run.name,
    directory: run.directory,
    environment: loop.environment,
    policy: policyAt(state.step),
    iteration: first,
    iterations: loop.iterations,
    rewards: run.resume.rows.flatMap((row) => (typeof row["train/reward"] === "number" ? [row["train/reward"]] : [])),
    resumed: run.resume.resumed
  })

  const iterate = Effect.fn("TrainingLoop.iteration")(function* (iteration: number) {
    const key = `${run.name}:${iteration}`
    const rolloutStarted = yield* Clock.currentTimeMillis
    const committed = iteration === first ? yield* committedEarlier(loop, key, iteration) : undefined
    const batch = yield* playBatch(loop, iteration, policyAt(state.step), committed !== undefined)
    const trajectories = batch.flatMap((group) => group.trajectories)
    const rolloutSeconds = ((yield* Clock.currentTimeMillis) - rolloutStarted) / 1000

    const exceeded = checkBudgets(iteration, trajectories, state, loop.budgets)
    if (Option.isSome(exceeded)) return yield* exceeded.value
    state.episodes += trajectories.length
    state.environmentFailures += trajectories.filter(
      ({ failure }) => failure?.kind === "environment" || failure?.kind === "reward"
    ).length

    const groups = yield* scoreGroups(loop, iteration, batch, committed === undefined)
    const trainStarted = yield* Clock.currentTimeMillis
    const result = committed ?? (yield* update(loop, iteration, key, state.step, groups))
    const trainSeconds = ((yield* Clock.currentTimeMillis) - trainStarted) / 1000
    state.step = result.step

    const last = iteration + 1 >= loop.iterations
    const due = loop.evaluate.every > 0 && (last || (iteration + 1) % loop.evaluate.every === 0)
    const evaluation = due ? yield* evaluate(loop, iteration, policyAt(state.step)) : {}
    const row = yield* run.finishIteration({
      iteration,
      step: state.step,
      trained: result.trained,
      figures: {
        ...batchFigures("train", trajectories),
        ...groupFigures(groups),
        ...result.metrics,
        ...Object.fromEntries(Object.entries(result.reasons).map(([reason, count]) => [`skipped/${reason}`, count])),
        "seconds/rollout": rolloutSeconds,
        "seconds/train": trainSeconds,
        ...evaluation
      }
    })
    state.rows.push(row)
    const skipped = Object.keys(result.reasons).some((reason) => reason.startsWith("non_finite"))
    state.nonFinite = skipped ? state.nonFinite + 1 : 0
    yield* Progress.publish({
      _tag: "IterationFinished",
      iteration,
      step: state.step,
      trained: result.trained,
      metrics: Object.fromEntries(
        Object.entries(row).filter((entry): entry is [string, number] => typeof entry[1] === "number")
      )
    })
    if (state.nonFinite >= MOST_NON_FINITE) {
      return yield* new NonFiniteUpdates({
        iterations: state.nonFinite,
        trajectories: trajectories.map(({ id }) => id),
        advice: "Lower the learning rate, or look at the log-probabilities of these trajectories in the journal."
      })
    }
  })

  const end = (reason: "completed" | "interrupted" | "failed", message?: string) => {
    const ending = {
      reason,
      iterations: state.rows.length,
      step: state.step,
      ...(message === undefined ? {} : { message })
    }
    return Effect.andThen(
      Effect.ignore(run.append({ kind: "run-ended", ...ending })),
      Progress.publish({ _tag: "RunEnded", ...ending })
    )
  }
  yield* Effect.forEach(
    Array.from({ length: Math.max(0, loop.iterations - first) }, (_, index) => first + index),
    iterate,
    { discard: true }
  ).pipe(
    Effect.onExit((exit) =>
      Exit.isSuccess(exit)
        ? end("completed")
        : Cause.hasInterruptsOnly(exit.cause)
          ? end("interrupted")
          : end("failed", messageOf(Cause.squash(exit.cause)))
    )
  )
  const checkpoints = yield* backend.checkpoints(loop.model.name)
  return {
    run: run.name,
    directory: run.directory,
    policy: policyAt(state.step),
    step: state.step,
    iterations: state.rows.length,
    checkpoint: checkpoints.find((checkpoint) => checkpoint.step === state.step)?.path ?? state.checkpoint,
    metrics: state.rows
  } satisfies TrainReport
})

const messageOf = (error: unknown) => (error instanceof Error ? error.message : String(error))

/**
 * The step of an iteration that was cut after its commit: from the journal, or, if the process died before writing it,
 * from the backend, which keeps the key with the checkpoint.
 */
const committedEarlier = Effect.fnUntraced(function* <E, R>(loop: TrainingLoop<E, R>, key: string, iteration: number) {
  const written = loop.run.resume.unfinished.find(
    (event) => event.kind === "step-committed" && event.iteration === iteration
  )
  if (written?.kind === "step-committed") return written
  if (!loop.run.resume.resumed) return undefined
  const checkpoints = yield* loop.backend.checkpoints(loop.model.name)
  const found = checkpoints.find((checkpoint) => checkpoint.key === key)
  if (found === undefined) return undefined
  const step = {
    kind: "step-committed" as const,
    iteration,
    key,
    step: found.step,
    trained: true,
    policy: `${loop.model.name}@${found.step}`,
    metrics: found.metrics,
    reasons: {}
  }
  yield* loop.run.append(step)
  return step
})

/** Plays the batch, or takes from the journal what an earlier session has played. */
const playBatch = Effect.fnUntraced(function* <E, R>(
  loop: TrainingLoop<E, R>,
  iteration: number,
  policy: string,
  onlyFinished: boolean
) {
  const { unfinished } = loop.run.resume
  if (onlyFinished) return scoredEarlier(unfinished, iteration)
  const finished = reusable(unfinished, iteration, policy)
  const plan = yield* loop.plan(iteration)
  yield* loop.run.append({ kind: "iteration-started", iteration, policy, scenarios: plan.scenarios })
  yield* Progress.publish({
    _tag: "IterationStarted",
    iteration,
    scenarios: plan.scenarios.length,
    episodes: plan.episodes
  })
  let done = finished.size
  const failures = new Map<string, number>()
  const groups = yield* loop.collect({
    iteration,
    policy: loop.backend.policy(policy),
    finished,
    onEpisode: (episode, trajectories) =>
      Effect.gen(function* () {
        done++
        const [one] = trajectories
        yield* loop.run.append({ kind: "episode-finished", iteration, episode, trajectories })
        for (const { failure } of trajectories) {
          if (failure === undefined) continue
          // many episodes fail alike: the first one is shown, the others are counted
          const alike = withoutPlace(failure.message)
          failures.set(alike, (failures.get(alike) ?? 0) + 1)
          if (failures.get(alike) !== 1) continue
          const level = failure.kind === "infrastructure" ? "warning" : "error"
          yield* Progress.notice(level, failure.stack ?? failure.message)
        }
        if (one !== undefined) {
          yield* Progress.publish({
            _tag: "EpisodeFinished",
            iteration,
            episode,
            reward: one.reward._tag === "Scored" ? one.reward.total : null,
            stopReason: one.stopReason,
            done,
            total: plan.episodes
          })
        }
      })
  })
  for (const [message, count] of failures) {
    if (count > 1) yield* Progress.notice("error", `${count} episodes failed so: ${message}`)
  }
  return groups
})

/** A message without the places that differ between episodes. */
const withoutPlace = (message: string) =>
  message.replace(/ ?\(episode [^)]*\)/gu, "").replace(/ of \S+\/\S+ is /gu, " is ")

/**
 * Episodes of a cut iteration that need not be played again: whole ones, sampled by the very policy that plays now. What
 * failed is played again: the reason may be mended by now.
 */
const reusable = (
  events: ReadonlyArray<JournalEvent>,
  iteration: number,
  policy: string
): ReadonlyMap<string, ReadonlyArray<Trajectory>> => {
  const name = policy.slice(0, policy.lastIndexOf("@") + 1)
  const sampledNow = ({ exchanges }: Trajectory) =>
    exchanges.every((exchange) => !exchange.policy.startsWith(name) || exchange.policy === policy)
  return new Map(
    events.flatMap((event) =>
      event.kind === "episode-finished" &&
      event.iteration === iteration &&
      event.trajectories.every((trajectory) => trajectory.failure === undefined && sampledNow(trajectory))
        ? [[event.episode, event.trajectories] as const]
        : []
    )
  )
}

/** The groups of an iteration that had its step already, with the rewards that they were trained with. */
const scoredEarlier = (events: ReadonlyArray<JournalEvent>, iteration: number): ReadonlyArray<Group> => {
  const trajectories = new Map<string, Trajectory>()
  const groups = new Map<string, Group>()
  for (const event of events) {
    if (event.kind === "episode-finished" && event.iteration === iteration) {
      for (const trajectory of event.trajectories) trajectories.set(trajectory.id, trajectory)
    }
    if (event.kind === "group-scored" && event.iteration === iteration) {
      const members = event.members.flatMap(({ reward, trajectory }) => {
        const found = trajectories.get(trajectory)
        return found === undefined ? [] : [{ ...found, reward }]
      })
      const [first] = members
      if (first === undefined) continue
      groups.set(event.group, { id: event.group, scenario: first.scenario, seat: first.seat, trajectories: members })
    }
  }
  return [...groups.values()]
}

const scoreGroups = Effect.fnUntraced(function* <E, R>(
  loop: TrainingLoop<E, R>,
  iteration: number,
  batch: ReadonlyArray<Group>,
  isNew: boolean
) {
  const groups: Array<ScoredGroup> = []
  for (const group of batch) {
    const scored = toScoredGroup(group, loop.rewardBounds)
    groups.push(scored)
    if (!isNew) continue
    const dropped = scored.dropped ?? null
    yield* loop.run.append({
      kind: "group-scored",
      iteration,
      group: group.id,
      members: group.trajectories.map(({ id, reward }) => ({ trajectory: id, reward })),
      dropped
    })
    yield* Progress.publish({
      _tag: "GroupScored",
      iteration,
      group: group.id,
      rewards: group.trajectories.map(({ reward }) => (reward._tag === "Scored" ? reward.total : null)),
      dropped
    })
  }
  return loop.transformGroups === undefined ? groups : loop.transformGroups(iteration, groups)
})

const update = Effect.fnUntraced(function* <E, R>(
  loop: TrainingLoop<E, R>,
  iteration: number,
  key: string,
  expectedStep: number,
  groups: ReadonlyArray<ScoredGroup>
) {
  const made = toTrainRequest(groups, { key, expectedStep, config: loop.config, maskTruncated: loop.maskTruncated })
  if (Result.isFailure(made)) return yield* made.failure
  for (const { level, message } of made.success.notices) yield* Progress.notice(level, message)
  const answered: TrainResult = yield* loop.backend.train(loop.model.name, made.success.request, (event) =>
    event.type === "progress"
      ? Progress.publish({
          _tag: "TrainProgress",
          iteration,
          phase: event.phase ?? "training",
          done: event.done ?? 0,
          total: event.total ?? 0
        })
      : Effect.void
  )
  const result = withLeftOut(answered, made.success.leftOut)
  yield* loop.run.append({
    kind: "step-committed",
    iteration,
    key,
    step: result.step,
    trained: result.trained,
    policy: result.policy,
    metrics: result.metrics,
    reasons: result.reasons
  })
  if (result.trained) {
    const checkpoints = yield* loop.backend.checkpoints(loop.model.name)
    const path = checkpoints.find((checkpoint) => checkpoint.step === result.step)?.path ?? ""
    yield* loop.run.noteCheckpoint({ step: result.step, policy: result.policy, path })
  }
  yield* Progress.publish({
    _tag: "StepCommitted",
    iteration,
    step: result.step,
    policy: result.policy,
    metrics: result.metrics
  })
  return result
})

const evaluate = Effect.fnUntraced(function* <E, R>(loop: TrainingLoop<E, R>, iteration: number, policy: string) {
  const started = yield* Clock.currentTimeMillis
  const trajectories = yield* loop.evaluate.run(loop.backend.policy(policy), iteration)
  const metrics = batchFigures("val", trajectories)
  const finite = Object.fromEntries(Object.entries(metrics).filter(([, value]) => Number.isFinite(value)))
  yield* loop.run.append({
    kind: "evaluation-finished",
    iteration,
    policy,
    episodes: trajectories.length,
    metrics: finite
  })
  yield* Progress.publish({
    _tag: "EvaluationFinished",
    iteration,
    policy,
    episodes: trajectories.length,
    metrics: finite
  })
  return { ...metrics, "seconds/evaluation": ((yield* Clock.currentTimeMillis) - started) / 1000 }
})
