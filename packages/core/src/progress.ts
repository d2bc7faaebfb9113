/**
 * Progress: what a run tells the world while it goes on, as typed events. A view (terminal, file, test) is a sink; the
 * default sink does nothing, so a library user pays for no view.
 */
import { Context, Effect, Schema } from "effect"
import { DropCause } from "./group.ts"
import { StopReason } from "./stop-reason.ts"

const figures = Schema.Record(Schema.String, Schema.Finite)

export const RunStarted = Schema.TaggedStruct("RunStarted", {
  run: Schema.String,
  directory: Schema.String,
  environment: Schema.String,
  /** `name@step` that the run starts from. */
  policy: Schema.String,
  /** The first iteration that will run; above 0 where a run is resumed. */
  iteration: Schema.Natural,
  /** The bound on iterations, `null` where there is none. */
  iterations: Schema.NullOr(Schema.Natural),
  /** Mean rewards of the iterations that are finished already. */
  rewards: Schema.Array(Schema.Finite),
  resumed: Schema.Boolean
})

export const IterationStarted = Schema.TaggedStruct("IterationStarted", {
  iteration: Schema.Natural,
  scenarios: Schema.Natural,
  episodes: Schema.Natural
})

export const EpisodeFinished = Schema.TaggedStruct("EpisodeFinished", {
  iteration: Schema.Natural,
  episode: Schema.String,
  /** `null` where the episode has no reward. */
  reward: Schema.NullOr(Schema.Finite),
  stopReason: StopReason,
  /** Episodes finished in this batch so far, this one included. */
  done: Schema.Natural,
  total: Schema.Natural
})

export const GroupScored = Schema.TaggedStruct("GroupScored", {
  iteration: Schema.Natural,
  group: Schema.String,
  /** One per member; `null` where the member has no reward. */
  rewards: Schema.Array(Schema.NullOr(Schema.Finite)),
  /** Why the group carries no signal, `null` where it does. */
  dropped: Schema.NullOr(DropCause)
})

export const TrainProgress = Schema.TaggedStruct("TrainProgress", {
  iteration: Schema.Natural,
  phase: Schema.String,
  done: Schema.Natural,
  total: Schema.Natural
})

export const StepCommitted = Schema.TaggedStruct("StepCommitted", {
  iteration: Schema.Natural,
  step: Schema.Natural,
  policy: Schema.String,
  metrics: figures
})

export const IterationFinished = Schema.TaggedStruct("IterationFinished", {
  iteration: Schema.Natural,
  step: Schema.Natural,
  trained: Schema.Boolean,
  metrics: figures
})

export const EvaluationFinished = Schema.TaggedStruct("EvaluationFinished", {
  iteration: Schema.Natural,
  policy: Schema.String,
  temperature: Schema.optionalKey(Schema.Finite),
  episodes: Schema.Natural,
  metrics: figures
})

export const Notice = Schema.TaggedStruct("Notice", {
  level: Schema.Literals(["info", "warning", "error"]),
  message: Schema.String
})

/** An episode waits longer than expected: which, in which turn, for what, for how many seconds. */
export const Stalled = Schema.TaggedStruct("Stalled", {
  episode: Schema.String,
  turn: Schema.Natural,
  waitingFor: Schema.String,
  seconds: Schema.Finite
})

export const RunEnded = Schema.TaggedStruct("RunEnded", {
  reason: Schema.Literals(["completed", "interrupted", "failed"]),
  /** Iterations that this run has finished, earlier sessions included. */
  iterations: Schema.Natural,
  step: Schema.Natural,
  /** The root cause where the run failed. */
  message: Schema.optionalKey(Schema.String)
})

export const Event = Schema.Union([
  RunStarted,
  IterationStarted,
  EpisodeFinished,
  GroupScored,
  TrainProgress,
  StepCommitted,
  IterationFinished,
  EvaluationFinished,
  Notice,
  Stalled,
  RunEnded
])
export type Event = typeof Event.Type

/** Where events go. A sink must not fail; it should not block, because the loop waits for it. */
export interface ProgressSink {
  readonly publish: (event: Event) => Effect.Effect<void>
}

/** The sink in use; override with `Effect.provideService(Progress.Sink, { publish })`. */
export const Sink = Context.Reference<ProgressSink>("@ludus/core/Progress", {
  defaultValue: () => ({ publish: () => Effect.void })
})

/** Sends an event to the sink in use. */
export const publish = (event: Event): Effect.Effect<void> => Effect.flatMap(Sink, (sink) => sink.publish(event))

/** Sends a notice to the sink in use. */
export const notice = (level: "info" | "warning" | "error", message: string): Effect.Effect<void> =>
  publish({ _tag: "Notice", level, message })
