/**
 * How long a hand-made rollout may take: a report each minute, and an end at the deadline.
 */
import { Effect, Schema } from "effect"
import * as Progress from "./progress.ts"

/** A rollout did not end in its time. */
export class MemberTimeout extends Schema.TaggedError<MemberTimeout>()("MemberTimeout", {
  /** Id of the trajectory. */
  member: Schema.String,
  seconds: Schema.Finite
}) {
  override get message() {
    return `The rollout of ${this.member} did not end within ${this.seconds} s (memberSeconds). Look for a promise that never settles, or allow it more.`
  }
}

/** Seconds between two reports of a rollout that has not ended. */
const REPORT_SECONDS = 60

/** Runs the rollout; publishes `Stalled` every 60 s, and interrupts the rollout after `seconds`. */
export const inTime = <A, E, R>(
  rollout: Effect.Effect<A, E, R>,
  member: string,
  seconds: number
): Effect.Effect<A, E | MemberTimeout, R> => Effect.raceFirst(rollout, deadline(member, seconds))

const deadline = Effect.fnUntraced(function* (member: string, seconds: number) {
  let waited = 0
  while (seconds - waited > REPORT_SECONDS) {
    yield* Effect.sleep(REPORT_SECONDS * 1000)
    waited += REPORT_SECONDS
    yield* Progress.publish({
      _tag: "Stalled",
      episode: member,
      turn: 0,
      waitingFor: "the rollout to end",
      seconds: waited
    })
  }
  yield* Effect.sleep((seconds - waited) * 1000)
  return yield* new MemberTimeout({ member, seconds })
})
