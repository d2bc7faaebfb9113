/**
 * What a conversation has been shown and has sampled, as ids: it says what a new prompt adds to an earlier exchange.
 */

interface Known {
  readonly parent: Known | undefined
  /** Prompt ids after the parent's prompt and sample. */
  readonly added: ReadonlyArray<number>
  readonly sampled: ReadonlyArray<number>
  /** Number of all ids up to the end of the sample. */
  readonly length: number
}

export interface Ancestry {
  /** Exchange that was added last. */
  readonly last: () => string | undefined
  /** The ids of `prompt` after everything that `exchange` has shown and sampled; `undefined` if it is no extension. */
  readonly suffix: (exchange: string, prompt: ReadonlyArray<number>) => ReadonlyArray<number> | undefined
  /** Adds an exchange; `added` are its prompt ids after its parent (all of them without one). */
  readonly add: (
    exchange: string,
    parent: string | null,
    added: ReadonlyArray<number>,
    sampled: ReadonlyArray<number>
  ) => void
}

/** Each exchange keeps only its own ids, so that memory grows with the conversation, not with its square. */
export const makeAncestry = (): Ancestry => {
  const exchanges = new Map<string, Known>()
  let last: string | undefined
  return {
    last: () => last,
    suffix: (exchange, prompt) => {
      const parent = exchanges.get(exchange)
      if (parent === undefined || prompt.length < parent.length) return undefined
      for (let at: Known | undefined = parent; at !== undefined; at = at.parent) {
        const sampledFrom = at.length - at.sampled.length
        if (!holds(prompt, sampledFrom, at.sampled)) return undefined
        if (!holds(prompt, sampledFrom - at.added.length, at.added)) return undefined
      }
      return prompt.slice(parent.length)
    },
    add: (exchange, parentId, added, sampled) => {
      const parent = parentId === null ? undefined : exchanges.get(parentId)
      exchanges.set(exchange, { parent, added, sampled, length: (parent?.length ?? 0) + added.length + sampled.length })
      last = exchange
    }
  }
}

const holds = (ids: ReadonlyArray<number>, from: number, part: ReadonlyArray<number>): boolean =>
  from >= 0 && part.every((id, index) => ids[from + index] === id)
