/**
 * The first line that a child prints: its report that it is ready. Whatever it prints later is read and dropped, so that it
 * never blocks on a full pipe.
 */
import { Effect } from "effect"
import type { ChildGroup } from "./child-group.ts"

/** Waits for a whole line; fails with how the child ended where its output ends without one. */
export const firstLine = <E>(child: ChildGroup, ended: Effect.Effect<never, E>): Effect.Effect<string, E> =>
  Effect.callback((resume) => {
    let text = ""
    const take = (chunk: string) => {
      if (text.includes("\n")) return
      text += chunk
      const end = text.indexOf("\n")
      if (end >= 0) resume(Effect.succeed(text.slice(0, end)))
    }
    child.output
      ?.setEncoding("utf8")
      .on("data", take)
      .on("end", () => resume(ended))
  })
