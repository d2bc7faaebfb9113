/**
 * Scenarios: the typed, serialisable inputs of episodes. A split (`train`, `held-out`) names where they come from; the two
 * never share a seed or a list entry.
 */
import { Seed } from "@ludus/core"

export type Split = "train" | "held-out"

/** One scenario at its place: the same id and seed give the same episode. */
export interface ScenarioInstance<Sc> {
  /** `train-12`, `held-out-3`: unique in an environment. */
  readonly id: string
  /** Seeds the environment's randomness; shared by all members of a group. */
  readonly seed: number
  readonly input: Sc
}

/** Where scenarios come from. */
export interface Scenarios<out Sc> {
  /** How many there are in a split; `Infinity` for generated ones. */
  readonly size: (split: Split) => number
  /** The scenario at `index` (0, 1, 2, ...). `seed` is the run's for `train` and a constant for `held-out`. */
  readonly at: (split: Split, index: number, seed: number) => ScenarioInstance<Sc>
}

/** Held-out scenarios are the same in every run, so that runs can be compared. */
const HELD_OUT_SEED = 20_240_917

/** Scenarios drawn from a seeded stream; there is always another one. */
export const generate = <Sc>(make: (random: Seed.RandomStream, index: number) => Sc): Scenarios<Sc> => ({
  size: () => Number.POSITIVE_INFINITY,
  at: (split, index, seed) => {
    const root = split === "train" ? seed : HELD_OUT_SEED
    return {
      id: `${split}-${index}`,
      seed: Seed.derive(root, split, index),
      input: make(Seed.stream(root, split, index, "scenario"), index)
    }
  }
})

/**
 * A fixed list. Without `heldOut`, the last fifth (at least one of two or more) is kept for evaluation. Training goes round
 * the list; each round has other seeds.
 */
export const list = <const Train, const HeldOut = never>(
  train: ReadonlyArray<Train>,
  heldOut?: ReadonlyArray<HeldOut>
): Scenarios<Train | HeldOut> => {
  const kept = heldOut === undefined && train.length > 1 ? Math.max(1, Math.floor(train.length / 5)) : 0
  const splits = {
    train: train.slice(0, train.length - kept),
    "held-out": heldOut ?? train.slice(train.length - kept)
  }
  return {
    size: (split) => splits[split].length,
    at: (split, index, seed) => {
      const items = splits[split]
      if (items.length === 0) throw new RangeError(`Scenario.list: the split "${split}" is empty`)
      const root = split === "train" ? seed : HELD_OUT_SEED
      return {
        id: `${split}-${index}`,
        seed: Seed.derive(root, split, index),
        input: items[index % items.length] as Train | HeldOut
      }
    }
  }
}
