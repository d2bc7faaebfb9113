/**
 * A file of JSON lines that only grows. Many fibers append; one writer takes all that wait, writes them in one piece and
 * makes them durable with one `fdatasync` (group commit).
 */
import { type FileHandle, open } from "node:fs/promises"
import { type Cause, Deferred, Effect, Fiber, Queue, type Scope } from "effect"
import { fileError, type RunError } from "./run-error.ts"

interface Waiting {
  readonly line: string
  readonly written: Deferred.Deferred<void, RunError>
}

export interface LineFile {
  /** Returns when the line is durable. Interrupting the wait does not take the line back. */
  readonly append: (line: string) => Effect.Effect<void, RunError>
}

/**
 * Opens for appending after `length` bytes; what lies behind (a torn line) is cut off. Closing the scope writes what
 * still waits.
 */
export const openLineFile = Effect.fn("LineFile.open")(function* (
  path: string,
  length: number
): Effect.fn.Return<LineFile, RunError, Scope.Scope> {
  const file = yield* Effect.acquireRelease(
    Effect.tryPromise({ try: () => open(path, "a+"), catch: fileError(path, "open") }),
    (handle) => Effect.promise(() => handle.close().catch(() => undefined))
  )
  yield* Effect.tryPromise({ try: () => file.truncate(length), catch: fileError(path, "cut the torn end of") })
  const queue = yield* Queue.unbounded<Waiting, Cause.Done>()
  const writer = yield* Effect.forkDetach(writeLoop(file, path, length, queue))
  yield* Effect.addFinalizer(() => Effect.andThen(Queue.end(queue), Fiber.await(writer)))
  return {
    append: (line) =>
      Effect.gen(function* () {
        const written = yield* Deferred.make<void, RunError>()
        const taken = yield* Queue.offer(queue, { line, written })
        if (!taken) return yield* fileError(path, "append to")(new Error("the run is closed"))
        yield* Deferred.await(written)
      })
  }
})

const writeLoop = (file: FileHandle, path: string, start: number, queue: Queue.Queue<Waiting, Cause.Done>) => {
  let length = start
  const write = (text: string) =>
    Effect.tryPromise({
      try: async () => {
        const bytes = Buffer.from(text)
        let written = 0
        while (written < bytes.length) written += (await file.write(bytes, written)).bytesWritten
        await file.datasync()
        length += bytes.length
      },
      catch: fileError(path, "append to")
    }).pipe(
      // A half-written batch must not stay in front of later lines.
      Effect.tapError(() => Effect.promise(() => file.truncate(length).catch(() => undefined)))
    )
  return Queue.takeAll(queue).pipe(
    Effect.flatMap((batch) =>
      Effect.gen(function* () {
        const exit = yield* Effect.exit(write(batch.map(({ line }) => `${line}\n`).join("")))
        for (const { written } of batch) yield* Deferred.done(written, exit)
      })
    ),
    Effect.forever,
    Effect.ignoreCause
  )
}
