/**
 * What a model said in a finished run, as examples: the best trajectories of `journal.jsonl`, by reward. The model that
 * spoke may have been another one, so texts are taken, not token ids.
 */
import { Effect } from "effect"
import type { SftExample, SftMessage, ToolSpec } from "../backend/protocol.ts"
import type { Exchange } from "../exchange.ts"
import type { Message } from "../message.ts"
import type { Reward } from "../reward-value.ts"
import { readJournal } from "../run/journal.ts"
import type { RunError } from "../run/run-error.ts"
import type { Trajectory } from "../trajectory.ts"

export interface BestOptions {
  /** Trajectories with a smaller total reward are left out. Default: none is. */
  readonly minReward?: number
  /** Of each group (scenario and seat of an iteration), at most so many: the best. Default: all. */
  readonly bestOf?: number
  /** Only this seat. */
  readonly seat?: string
  /** What the model could call: a journal does not hold it. */
  readonly tools?: ReadonlyArray<ToolSpec>
}

export interface SavedTrajectories {
  readonly examples: ReadonlyArray<SftExample>
  /** Trajectories in the journal, those taken, and those without a reward. */
  readonly found: number
  readonly taken: number
  readonly unscored: number
}

interface Scored {
  readonly group: string
  readonly trajectory: Trajectory
  readonly total: number
}

/** Reads a journal. Group rewards (a judge's) count where the run had them. */
export const readSavedTrajectories = Effect.fn("readSavedTrajectories")(function* (
  path: string,
  options: BestOptions = {}
): Effect.fn.Return<SavedTrajectories, RunError> {
  const played = new Map<string, { readonly group: string; readonly trajectory: Trajectory }>()
  const rewards = new Map<string, Reward>()
  yield* readJournal(path, (event) => {
    if (event.kind === "episode-finished") {
      for (const trajectory of event.trajectories) {
        played.set(trajectory.id, { group: `${event.iteration} ${trajectory.group}`, trajectory })
      }
    } else if (event.kind === "group-scored") {
      for (const { reward, trajectory } of event.members) rewards.set(trajectory, reward)
    }
  })
  const wanted = [...played.values()].filter(({ trajectory }) => (options.seat ?? trajectory.seat) === trajectory.seat)
  const scored = wanted.flatMap(({ group, trajectory }): ReadonlyArray<Scored> => {
    const reward = rewards.get(trajectory.id) ?? trajectory.reward
    return reward._tag === "Scored" ? [{ group, trajectory, total: reward.total }] : []
  })
  const taken = best(scored, options)
  return {
    examples: taken.flatMap(({ trajectory }) => conversations(trajectory.exchanges, options.tools ?? [])),
    found: wanted.length,
    taken: taken.length,
    unscored: wanted.length - scored.length
  }
})

/** In the order of the journal; of equal rewards the earlier one counts as better. */
const best = (scored: ReadonlyArray<Scored>, options: BestOptions): ReadonlyArray<Scored> => {
  const good = scored.filter(({ total }) => total >= (options.minReward ?? -Infinity))
  const limit = options.bestOf
  if (limit === undefined) return good
  const kept = new Set<Scored>()
  for (const name of new Set(good.map(({ group }) => group))) {
    const members = good.filter(({ group }) => group === name).toSorted((a, b) => b.total - a.total)
    for (const member of members.slice(0, limit)) kept.add(member)
  }
  return good.filter((member) => kept.has(member))
}

/**
 * One example for each exchange that no other continues. A reply carries loss in the first example that holds it, and not
 * where the token limit cut it: it would teach to stop there.
 */
const conversations = (
  exchanges: ReadonlyArray<Exchange>,
  tools: ReadonlyArray<ToolSpec>
): ReadonlyArray<SftExample> => {
  const byId = new Map(exchanges.map((exchange) => [exchange.id, exchange]))
  const continued = new Set(exchanges.map(({ parent }) => parent))
  const learned = new Set<string>()
  return exchanges
    .filter(({ id }) => !continued.has(id))
    .flatMap((last) => {
      const messages = lineage(last, byId).flatMap((exchange): ReadonlyArray<SftMessage> => {
        const learns = !learned.has(exchange.id) && exchange.finishReason !== "length"
        learned.add(exchange.id)
        return [...exchange.messages.map(asHistory), { ...exchange.reply, weight: learns ? 1 : 0 }]
      })
      const learns = messages.some(
        (message) => message.role === "assistant" && "weight" in message && message.weight === 1
      )
      return learns ? [{ messages, ...(tools.length === 0 ? {} : { tools }) }] : []
    })
}

/** The exchange and those before it, oldest first. */
const lineage = (last: Exchange, byId: ReadonlyMap<string, Exchange>): ReadonlyArray<Exchange> => {
  const line: Array<Exchange> = []
  for (let at: Exchange | undefined = last; at !== undefined; at = byId.get(at.parent ?? "")) line.unshift(at)
  return line
}

/** A reply inside the messages of a request was made elsewhere: it is context. */
const asHistory = (message: Message): SftMessage => (message.role === "assistant" ? { ...message, weight: 0 } : message)
