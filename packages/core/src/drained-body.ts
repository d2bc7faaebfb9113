/**
 * A streamed body that is read to its end whatever its reader does: a reader that leaves early must not cost the record.
 */
export interface DrainedBody {
  /** What the reader gets. */
  readonly body: ReadableStream<Uint8Array>
  /** When the text is whole, or will never be. A failure that no reader was there to see is given, as text. */
  readonly settled: Promise<string | undefined>
  /** Closes the connection. */
  readonly close: () => void
}

/**
 * Reads `source` at its own pace. `whole` gets the text when its last event has come, before the reader sees that, or at
 * the end without one; where it throws, the reader's stream fails. `leaving` is aborted by a reader that stops.
 */
export const drainBody = (
  source: ReadableStream<Uint8Array>,
  leaving: AbortSignal | null | undefined,
  whole: (text: string) => void
): DrainedBody => {
  const reader = source.getReader()
  const { promise: settled, resolve: settle } = Promise.withResolvers<string | undefined>()
  let left = false
  let out: ReadableStreamDefaultController<Uint8Array> | undefined
  const body = new ReadableStream<Uint8Array>({
    start: (controller) => {
      out = controller
    },
    cancel: () => {
      left = true
    }
  })
  const leave = () => {
    if (!left) out?.error(leaving?.reason)
    left = true
  }
  if (leaving?.aborted === true) leave()
  else leaving?.addEventListener("abort", leave, { once: true })

  const pump = async (): Promise<void> => {
    const decoder = new TextDecoder()
    let text = ""
    let done = false
    const finish = () => {
      if (done) return
      whole(text)
      done = true
      settle(undefined)
    }
    try {
      for (;;) {
        const piece = await reader.read()
        if (piece.done) break
        const searched = Math.max(0, text.length - END.length)
        text += decoder.decode(piece.value, { stream: true })
        if (text.includes(END, searched)) finish()
        if (!left) out?.enqueue(piece.value)
      }
      finish()
      if (!left) out?.close()
    } catch (error) {
      const seen = !left && body.locked
      if (!left) out?.error(error)
      settle(seen ? undefined : error instanceof Error ? error.message : String(error))
      void reader.cancel().catch(() => undefined)
    } finally {
      leaving?.removeEventListener("abort", leave)
    }
  }
  void pump()
  return { body, settled, close: () => void reader.cancel().catch(() => undefined) }
}

/** The last event of a stream, behind which clients stop reading. */
const END = "data: [DONE]"
