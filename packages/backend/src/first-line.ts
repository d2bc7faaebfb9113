/**
 * The first line that a child prints: its report that it is ready. Whatever it prints later is read and dropped, so that it
 * never blocks on a full pipe.
 */
import { Effect } from "effect"
import type { ChildGroup } from "./child-group.ts"

/** Waits for a whole line; never answers when the output ends without one (race it with the child's end). */
export const firstLine = (child: ChildGroup): Effect.Effect<string> =>
  Effect.callback((resume) => {
    let text = ""
    child.output?.setEncoding("utf8").on("data", (chunk: string) => {
      if (text.includes("\n")) return
      text += chunk
      const end = text.indexOf("\n")
      if (end >= 0) resume(Effect.succeed(text.slice(0, end)))
    })
  })
