/**
 * The lines of `journal.jsonl`: what a run has done, in order, so that a stopped run goes on where it was.
 */
import { Schema } from "effect"
import { DropCause } from "../group.ts"
import { Reward } from "../reward.ts"
import { Trajectory } from "../trajectory.ts"

/** Version of the lines; another one is refused on opening. */
export const JOURNAL_VERSION = 1

const line = <const Kind extends string, const Fields extends Schema.Struct.Fields>(kind: Kind, fields: Fields) =>
  Schema.Struct({
    v: Schema.Literal(JOURNAL_VERSION),
    /** Milliseconds since the epoch. */
    at: Schema.Finite,
    kind: Schema.Literal(kind),
    ...fields
  })

const figures = Schema.Record(Schema.String, Schema.Finite)

/** A session of the run began: the first, or one that goes on. */
export const RunStarted = line("run-started", {
  run: Schema.String,
  environment: Schema.String,
  model: Schema.String,
  step: Schema.Natural,
  /** The first iteration of this session. */
  iteration: Schema.Natural,
  resumed: Schema.Boolean
})

export const IterationStarted = line("iteration-started", {
  iteration: Schema.Natural,
  /** `name@step` that plays. */
  policy: Schema.String,
  /** `input` is the encoded scenario. */
  scenarios: Schema.Array(
    Schema.Struct({ id: Schema.String, seed: Schema.Finite, input: Schema.optionalKey(Schema.Unknown) })
  )
})

/** One episode with the trajectories of all its trained seats. */
export const EpisodeFinished = line("episode-finished", {
  iteration: Schema.Natural,
  episode: Schema.String,
  trajectories: Schema.Array(Trajectory)
})

/** The final rewards of a group, group terms included; `dropped` is set where it carries no signal. */
export const GroupScored = line("group-scored", {
  iteration: Schema.Natural,
  group: Schema.String,
  members: Schema.Array(Schema.Struct({ trajectory: Schema.String, reward: Reward })),
  dropped: Schema.NullOr(DropCause)
})

/** The backend answered a train request. `trained` false: no step was made, `reasons` say why. */
export const StepCommitted = line("step-committed", {
  iteration: Schema.Natural,
  key: Schema.String,
  step: Schema.Natural,
  trained: Schema.Boolean,
  policy: Schema.String,
  metrics: figures,
  reasons: Schema.Record(Schema.String, Schema.Natural)
})

export const EvaluationFinished = line("evaluation-finished", {
  iteration: Schema.Natural,
  policy: Schema.String,
  temperature: Schema.optionalKey(Schema.Finite),
  episodes: Schema.Natural,
  metrics: figures
})

export const RunEnded = line("run-ended", {
  reason: Schema.Literals(["completed", "interrupted", "failed"]),
  iterations: Schema.Natural,
  step: Schema.Natural,
  message: Schema.optionalKey(Schema.String)
})

export const JournalEvent = Schema.Union([
  RunStarted,
  IterationStarted,
  EpisodeFinished,
  GroupScored,
  StepCommitted,
  EvaluationFinished,
  RunEnded
])
export type JournalEvent = typeof JournalEvent.Type

/** An event as the loop appends it: the journal adds `v` and `at`. */
export type JournalEntry = JournalEvent extends infer Event
  ? Event extends JournalEvent
    ? Omit<Event, "v" | "at">
    : never
  : never
