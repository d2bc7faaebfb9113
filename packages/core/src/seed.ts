/**
 * Seeds: every random draw of a run comes from one number. A seed of a part is a hash of the run's seed and the part's
 * place, so a thousand interleaved episodes draw the same numbers as one after the other.
 */
import { createHash } from "node:crypto"

/** A seed in [0, 2^53) from a root seed and a path (iteration, scenario, member, seat, turn, ...). */
export const derive = (seed: number, ...path: ReadonlyArray<string | number>): number => {
  const digest = createHash("sha256")
    .update(JSON.stringify([seed, ...path]))
    .digest()
  return Number(digest.readBigUInt64LE(0) >> 11n)
}

/** Random numbers of one stream. Not for secrets. */
export interface RandomStream {
  /** In [0, 1). */
  readonly next: () => number
  /** An integer in [minimum, maximum], both included. */
  readonly integer: (minimum: number, maximum: number) => number
  /** One of the items; throws RangeError on an empty array. */
  readonly choice: <A>(items: ReadonlyArray<A>) => A
  /** A new array in random order (Fisher-Yates). */
  readonly shuffle: <A>(items: ReadonlyArray<A>) => Array<A>
}

/**
 * A stream from a seed: the generator sfc32 (Doty-Humphrey, PractRand) on four words of the seed's hash.
 */
export const stream = (seed: number, ...path: ReadonlyArray<string | number>): RandomStream => {
  const digest = createHash("sha256")
    .update(JSON.stringify([seed, ...path]))
    .digest()
  let a = digest.readInt32LE(0)
  let b = digest.readInt32LE(4)
  let c = digest.readInt32LE(8)
  let d = digest.readInt32LE(12)
  const next = () => {
    const t = (((a + b) | 0) + d) | 0
    d = (d + 1) | 0
    a = b ^ (b >>> 9)
    b = (c + (c << 3)) | 0
    c = (c << 21) | (c >>> 11)
    c = (c + t) | 0
    return (t >>> 0) / 4294967296
  }
  const integer = (minimum: number, maximum: number) => minimum + Math.floor(next() * (maximum - minimum + 1))
  return {
    next,
    integer,
    choice: (items) => {
      if (items.length === 0) throw new RangeError("choice of an empty array")
      return items[integer(0, items.length - 1)] as (typeof items)[number]
    },
    shuffle: (items) => {
      const out = items.slice()
      for (let i = out.length - 1; i > 0; i--) {
        const j = integer(0, i)
        ;[out[i], out[j]] = [out[j] as (typeof out)[number], out[i] as (typeof out)[number]]
      }
      return out
    }
  }
}
