/**
 * What every running episode waits for, and since when: the source of stall reports.
 */
import { Clock, Effect } from "effect"

export interface Wait {
  readonly episode: string
  readonly turn: number
  readonly waitingFor: string
  /** Milliseconds since the epoch. */
  readonly since: number
}

export interface Waits {
  /** Runs `effect` and lists it as a wait of the episode meanwhile. */
  readonly during: <A, E, R>(
    episode: string,
    turn: number,
    waitingFor: string,
    effect: Effect.Effect<A, E, R>
  ) => Effect.Effect<A, E, R>
  /** Waits that have lasted for at least `seconds`, longest first. */
  readonly longerThan: (seconds: number) => Effect.Effect<ReadonlyArray<Wait & { readonly seconds: number }>>
}

export const make = (): Waits => {
  const waiting = new Map<string, Wait>()
  return {
    during: (episode, turn, waitingFor, effect) =>
      Effect.flatMap(Clock.currentTimeMillis, (since) => {
        waiting.set(episode, { episode, turn, waitingFor, since })
        return Effect.ensuring(
          effect,
          Effect.sync(() => waiting.delete(episode))
        )
      }),
    longerThan: (seconds) =>
      Effect.map(Clock.currentTimeMillis, (now) =>
        [...waiting.values()]
          .map((wait) => ({ ...wait, seconds: (now - wait.since) / 1000 }))
          .filter((wait) => wait.seconds >= seconds)
          .toSorted((a, b) => b.seconds - a.seconds)
      )
  }
}
