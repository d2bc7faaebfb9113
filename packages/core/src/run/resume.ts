/**
 * Where a run goes on. The unit is the iteration: it is finished when its metrics row is written. What an unfinished
 * iteration has already written (episodes, rewards, its step) is handed back, so that only episodes in flight are lost.
 */
import type { FailureKind } from "../trajectory.ts"
import type { JournalEvent } from "./journal-event.ts"
import type { MetricsRow } from "./metrics.ts"
import type { LinesRead } from "./read-lines.ts"

export interface Resume {
  /** Whether the run was there before. */
  readonly resumed: boolean
  /** The first iteration without a metrics row; 0 for a new run. */
  readonly nextIteration: number
  /** Newest step that the run knows of; the backend may know one more. */
  readonly step: number
  /** Rows of the finished iterations, in order. */
  readonly rows: ReadonlyArray<MetricsRow>
  /** Events of iterations that are not finished, in order. */
  readonly unfinished: ReadonlyArray<JournalEvent>
  /** Episodes of the finished iterations, and their failures by kind: budgets go on from here. */
  readonly episodes: number
  readonly failures: Readonly<Record<FailureKind, number>>
  /** What a person should know, such as a torn line that was dropped. */
  readonly notices: ReadonlyArray<string>
}

/** Folds the journal while it is read: of finished iterations only counts are kept. */
export const makeResume = (resumed: boolean, rows: ReadonlyArray<MetricsRow>) => {
  const last = rows.at(-1)
  const nextIteration = last === undefined ? 0 : last.iteration + 1
  const unfinished: Array<JournalEvent> = []
  const failures: Record<FailureKind, number> = { environment: 0, infrastructure: 0, reward: 0, judge: 0 }
  let step = last?.step ?? 0
  let episodes = 0
  return {
    take: (event: JournalEvent): void => {
      if (event.kind === "step-committed") step = Math.max(step, event.step)
      // those of an unfinished iteration are counted when it finishes
      if (event.kind === "episode-finished" && event.iteration < nextIteration) {
        episodes += 1
        const failed = event.trajectories.find((trajectory) => trajectory.failure !== undefined)
        if (failed?.failure !== undefined) failures[failed.failure.kind] += 1
      }
      if (event.kind !== "run-started" && event.kind !== "run-ended" && event.iteration >= nextIteration)
        unfinished.push(event)
    },
    finish: (files: ReadonlyArray<readonly [name: string, read: LinesRead]>): Resume => ({
      resumed,
      nextIteration,
      step,
      rows,
      unfinished,
      episodes,
      failures,
      notices: files.flatMap(([name, read]) =>
        read.torn === 0 ? [] : [`${name}: the last ${read.torn} bytes were cut by a crash and are dropped.`]
      )
    })
  }
}
