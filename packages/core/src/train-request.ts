/**
 * Groups to a train request: the one door to the trainer. By type only scored trajectories pass it; ids and
 * log-probabilities go through unchanged.
 */
import { Result, Schema } from "effect"
import type { TrainConfig, TrainGroup, TrainRequest, TrainResult } from "./backend/protocol.ts"
import type { Exchange } from "./exchange.ts"
import type { ScoredGroup } from "./group.ts"
import type { ScoredTrajectory } from "./trajectory.ts"

/** The groups cannot be trained as they are. */
export class InvalidTrainRequest extends Schema.TaggedError<InvalidTrainRequest>()("InvalidTrainRequest", {
  /** Group, trajectory or exchange, and the field. */
  field: Schema.String,
  value: Schema.String,
  expected: Schema.String,
  advice: Schema.String
}) {
  override get message() {
    return `${this.field} is ${this.value}; expected ${this.expected}. ${this.advice}`
  }
}

/** Something a person should know about the batch. */
export interface TrainNotice {
  readonly level: "info" | "warning"
  readonly code: "identical_group" | "no_exchanges" | "no_scored"
  readonly group: string
  readonly message: string
}

export interface TrainRequestOptions {
  /** Idempotency key: letters, digits, `.`, `_`, `:` and `-`, at most 200. A repeat with the same key trains once. */
  readonly key: string
  /** The step that this update starts from. */
  readonly expectedStep: number
  readonly config: TrainConfig
  /** Cut replies stay in their group's baseline but are not trained (DAPO's overlong filtering). Default false. */
  readonly maskTruncated?: boolean
}

/**
 * Makes the request and says what is odd about the batch. Groups that carry no signal are sent too, with their cause:
 * a whole-batch denominator counts their tokens. A member without any exchange has nothing to train and is left out,
 * with a notice; so is a group without any member to train, and `leftOut` counts it by its cause.
 */
export const toTrainRequest = (
  groups: ReadonlyArray<ScoredGroup>,
  options: TrainRequestOptions
): Result.Result<
  {
    readonly request: TrainRequest
    readonly notices: ReadonlyArray<TrainNotice>
    /** Groups that are not in the request, counted by cause: to be told with the result, see {@link withLeftOut}. */
    readonly leftOut: Readonly<Record<string, number>>
  },
  InvalidTrainRequest
> => {
  const notices: Array<TrainNotice> = []
  const sent: Array<TrainGroup> = []
  const leftOut: Record<string, number> = {}
  const seen = new Set<string>()
  for (const group of groups) {
    if (seen.has(group.id)) {
      return Result.fail(
        new InvalidTrainRequest({
          field: "groups.id",
          value: JSON.stringify(group.id),
          expected: "each group id once",
          advice: "Give every scenario of a batch its own id; members of one scenario and seat belong into one group."
        })
      )
    }
    seen.add(group.id)
    const members = group.trajectories.filter((trajectory) => trajectory.exchanges.length > 0)
    if (members.length === 0) {
      const notice = withoutMembers(group)
      notices.push(notice)
      leftOut[`dropped_${notice.code}`] = (leftOut[`dropped_${notice.code}`] ?? 0) + 1
      continue
    }
    for (const trajectory of group.trajectories) {
      if (trajectory.exchanges.length > 0) continue
      const message = `Trajectory ${trajectory.id} (${trajectory.stopReason}) has no exchange: nothing of it can be trained.`
      notices.push({ level: "warning", code: "no_exchanges", group: group.id, message })
    }
    const problem = members.map(untrainable).find((found) => found !== undefined)
    if (problem !== undefined) return Result.fail(problem)
    const identical = identicalMembers(group.id, members)
    if (identical !== undefined) notices.push(identical)
    sent.push(toTrainGroup(group, members, options))
  }
  const { config, expectedStep, key } = options
  return Result.succeed({ request: { key, expectedStep, groups: sent, config }, notices, leftOut })
}

const withoutMembers = ({ id, trajectories }: ScoredGroup): TrainNotice => ({
  level: "warning",
  code: trajectories.length === 0 ? "no_scored" : "no_exchanges",
  group: id,
  message:
    trajectories.length === 0
      ? `Group ${id} has no scored member: nothing of it can be trained.`
      : `Group ${id}: none of its ${trajectories.length} scored members has an exchange, so nothing of it can be trained. Were the calls made with the episode's own client?`
})

/** The result of a request, with the groups that were never sent among the reasons where nothing was trained. */
export const withLeftOut = (result: TrainResult, leftOut: Readonly<Record<string, number>>): TrainResult => {
  if (result.trained || Object.keys(leftOut).length === 0) return result
  const { no_groups: _, ...reasons } = result.reasons
  return { ...result, reasons: { ...reasons, ...leftOut } }
}

const toTrainGroup = (
  group: ScoredGroup,
  members: ReadonlyArray<ScoredTrajectory>,
  { config, maskTruncated = false }: TrainRequestOptions
): TrainGroup => ({
  id: group.id,
  dropped: members.length < 2 ? (group.dropped ?? "too_few_scored") : (droppedFor(config, group) ?? null),
  trajectories: members.map((trajectory) => {
    const returns = config.credit === "turn" ? returnsToGo(trajectory) : undefined
    return {
      id: trajectory.id,
      reward: trajectory.reward.total,
      exchanges: trajectory.exchanges.flatMap((exchange, index) => {
        const returnToGo = returns?.[index]
        return exchange.tokens === undefined
          ? []
          : [
              {
                id: exchange.id,
                parent: exchange.parent,
                ...exchange.tokens,
                temperature: exchange.temperature,
                policy: exchange.policy,
                trained: !(maskTruncated && trajectory.truncated),
                ...(returnToGo === undefined ? {} : { returnToGo })
              }
            ]
      })
    }
  })
})

/** Equal rewards say nothing about single turns: with credit by turn the trainer looks at the returns itself. */
const droppedFor = (config: TrainConfig, { dropped }: ScoredGroup) =>
  config.credit === "turn" && dropped !== "too_few_scored" ? undefined : dropped

/**
 * For each exchange the reward less what earlier turns gave: what was still to come from there on. Turn rewards count
 * as they were given; a term's own discount shapes the total only.
 */
const returnsToGo = ({ exchanges, reward }: ScoredTrajectory): ReadonlyArray<number> => {
  let left = reward.total
  return exchanges.map(({ turnReward = 0 }) => {
    const now = left
    left -= turnReward
    return now
  })
}

/** The first thing that makes a member untrainable, if any. */
const untrainable = (trajectory: ScoredTrajectory): InvalidTrainRequest | undefined => {
  const refuse = (field: string, value: string, expected: string, advice: string) =>
    new InvalidTrainRequest({ field: `trajectory ${trajectory.id}: ${field}`, value, expected, advice })
  if (!Number.isFinite(trajectory.reward.total)) {
    return refuse(
      "reward.total",
      String(trajectory.reward.total),
      "a finite number",
      "Leave the trajectory unscored instead."
    )
  }
  for (const exchange of trajectory.exchanges) {
    const place = `exchange ${exchange.id}`
    if (exchange.tokens === undefined) {
      return refuse(
        `${place}.tokens`,
        "missing",
        "the token ids that were sampled",
        `Policy "${exchange.policy}" returns no ids: train the seat of a model that the backend serves.`
      )
    }
    const { sampledIds, logprobs } = exchange.tokens
    if (logprobs.length !== sampledIds.length) {
      return refuse(
        `${place}.logprobs`,
        `${logprobs.length} numbers`,
        `${sampledIds.length}, one per sampled id`,
        "Ask with logprobs."
      )
    }
    if (!(exchange.temperature > 0)) {
      return refuse(
        `${place}.temperature`,
        String(exchange.temperature),
        "above 0",
        "Greedy samples carry no gradient: sample at 1."
      )
    }
  }
  return undefined
}

/** Below this chance an identical group is a fault of the sampling, not of a sharp policy. */
const UNLIKELY = 1e-3

/**
 * All members sampled the same ids at a temperature above 0. The chance of that is the first member's probability, once
 * for each further member; if it is tiny, the members share a seed.
 */
const identicalMembers = (group: string, members: ReadonlyArray<ScoredTrajectory>): TrainNotice | undefined => {
  const first = members[0]
  if (first === undefined || members.length < 2) return undefined
  const sampled = JSON.stringify(first.exchanges.map(sampledIds))
  if (members.some((member) => JSON.stringify(member.exchanges.map(sampledIds)) !== sampled)) return undefined
  const logprob = first.exchanges.reduce(
    (sum, exchange) => sum + (exchange.tokens?.logprobs ?? []).reduce((a, b) => a + b, 0),
    0
  )
  const chance = Math.exp((members.length - 1) * logprob)
  const temperature = first.exchanges[0]?.temperature ?? 1
  const reading = chance < UNLIKELY ? "do they share a seed, or a cached reply?" : "the policy has become sharp here."
  return {
    level: chance < UNLIKELY ? "warning" : "info",
    code: "identical_group",
    group,
    message:
      `identical group: ${members.length} of ${members.length} members of ${group} sampled the same ids at temperature ` +
      `${temperature} (chance ${chance.toPrecision(2)}): ${reading}`
  }
}

const sampledIds = (exchange: Exchange) => exchange.tokens?.sampledIds ?? []
