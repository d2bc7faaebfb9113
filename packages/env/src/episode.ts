/**
 * One episode, generated from the declaration: show the seat its observation, ask the policy, decode the reply, apply the
 * action, until the environment is done or a limit is met. It never fails: what went wrong is data in the trajectories.
 */
import { isOwnFigure, Message, Policy, Reward, Seed, type StopReason, type Trajectory } from "@ludus/core"
import { Clock, Effect, Layer, Option, Result, type Scope } from "effect"
import { isIllegal } from "./action.ts"
import type { Any, Ending, Requirements } from "./environment.ts"
import { type ResolvedLimits, resolveLimits } from "./limits.ts"
import type { ScenarioInstance } from "./scenario.ts"
import { checkValues, total } from "./score.ts"
import { addTurnTerms, counts, openSeat, record, type SeatEnd, type SeatLog } from "./seat.ts"
import { callUser, inOwnScope, UserCodeFailure, wrongValue } from "./user-code.ts"
import { isState } from "./state.ts"
import type { Waits } from "./waits.ts"
import type { Watchdog } from "./watchdog.ts"

export interface EpisodeOptions {
  /** Unique in the run: `3/train-12/5`. */
  readonly id: string
  /** Names the batch: with scenario and seat it names the group. */
  readonly batch: string
  readonly scenario: ScenarioInstance<unknown>
  readonly member: number
  /** Which policy plays each seat. */
  readonly policies: Readonly<Record<string, Policy.Policy>>
  /** Seats whose exchanges will be trained. */
  readonly trainedSeats: ReadonlyArray<string>
  readonly temperature: number
  /** Seed of the sampling draws of this episode: members of a group differ. */
  readonly samplingSeed: number
  readonly watchdog: Watchdog
  readonly waits: Waits
}

export const seatsOf = (environment: Any): ReadonlyArray<string> => environment.spec.seats ?? ["player"]

/** An ending that is not the environment's doing. */
interface Stop extends SeatEnd {
  readonly failure?: {
    readonly kind: "environment" | "infrastructure"
    readonly message: string
    readonly stack?: string
  }
}

/** One trajectory per seat. */
export const runEpisode = <E extends Any>(
  environment: E,
  options: EpisodeOptions
): Effect.Effect<ReadonlyArray<Trajectory>, never, Requirements<E>> => {
  const play: Effect.Effect<ReadonlyArray<Trajectory>, never, Scope.Scope> = Effect.gen(function* () {
    const startedAt = yield* Clock.currentTimeMillis
    const logs = new Map(
      seatsOf(environment).map((seat) => [
        seat,
        openSeat(seat, options.policies[seat] ?? missingPolicy(seat), environment.spec.system)
      ])
    )
    const outcome = yield* Effect.result(playOut(environment, options, logs, startedAt))
    const end = Result.isSuccess(outcome) ? outcome.success : stopOf(outcome.failure)
    const finishedAt = yield* Clock.currentTimeMillis
    const trajectories: Array<Trajectory> = []
    for (const log of logs.values()) {
      trajectories.push(yield* conclude(environment, options, log, end, startedAt, (finishedAt - startedAt) / 1000))
    }
    return trajectories
  })
  const finalizers = `finalizers of environment "${environment.id}" (episode ${options.id})`
  const scoped = inOwnScope(
    finalizers,
    resolveLimits(environment.spec.limits).environmentSeconds,
    withServices(environment, play)
  )
  return scoped.pipe(
    Effect.catch((failure) =>
      Effect.map(Clock.currentTimeMillis, (now) => withoutServices(environment, options, failure, now))
    )
  ) as Effect.Effect<ReadonlyArray<Trajectory>, never, Requirements<E>>
}

/** Builds the per-episode services in the episode's own scope. */
const withServices = <A>(
  environment: Any,
  play: Effect.Effect<A, never, Scope.Scope>
): Effect.Effect<A, UserCodeFailure, Scope.Scope> => {
  const layer = environment.perEpisode as Layer.Layer<unknown, unknown> | undefined
  if (layer === undefined) return play
  return Effect.flatMap(
    callUser(`services of "${environment.id}"`, resolveLimits(environment.spec.limits).environmentSeconds, () =>
      Layer.build(Layer.fresh(layer))
    ),
    (context) => Effect.provide(play, context)
  )
}

const missingPolicy = (seat: string): Policy.Policy => {
  throw new TypeError(`no policy plays seat "${seat}"`)
}

/** Names a function of the user's at its place, for messages. */
const whereabouts = (environment: Any, options: EpisodeOptions, name: string, turn: number) =>
  `"${name}" of environment "${environment.id}" (episode ${options.id}, turn ${turn})`

interface Playing extends Stop {
  readonly state: unknown
}

const playOut = Effect.fnUntraced(function* (
  environment: Any,
  options: EpisodeOptions,
  logs: ReadonlyMap<string, SeatLog>,
  startedAt: number
) {
  const { behaviour, spec } = environment
  const limits = resolveLimits(spec.limits)
  const input = options.scenario.input
  const random = Seed.stream(options.scenario.seed, "environment")
  const conversations = new Map<string, Policy.Conversation>()
  const user = <A>(name: string, turn: number, f: () => unknown) => {
    const where = whereabouts(environment, options, name, turn)
    options.watchdog.enter(where)
    return callUser(where, limits.environmentSeconds, f) as Effect.Effect<A, UserCodeFailure>
  }

  const stateFrom = (name: "start" | "act", turn: number, value: unknown) =>
    isState(environment, value)
      ? Effect.succeed(value)
      : Effect.fail(
          wrongValue(whereabouts(environment, options, name, turn), value, "a state as its Schema describes it")
        )

  let state = yield* stateFrom("start", 0, yield* user<unknown>("start", 0, () => behaviour.start(input, { random })))
  const seats = [...logs.keys()]
  let moves = 0
  let hint: string | undefined
  for (;;) {
    const before = state
    if (yield* user<boolean>("done", moves, () => behaviour.done(before, input))) {
      return stop(state, "completed")
    }
    const seat: string =
      behaviour.next === undefined
        ? (seats[moves % seats.length] as string)
        : yield* user<string>("next", moves, () => behaviour.next?.(before, input))
    const log = logs.get(seat)
    if (log === undefined) {
      return yield* wrongValue(whereabouts(environment, options, "next", moves), seat, `one of ${seats.join(", ")}`)
    }
    const turn = { seat, turn: log.turns, random }

    const left = limits.seconds - ((yield* Clock.currentTimeMillis) - startedAt) / 1000
    if (left <= 0) return stop(state, "timeout")
    if (log.turns >= limits.turns) return stop(state, "max_turns")
    const maxTokens = Math.min(limits.tokensPerTurn, limits.tokens - log.sampledTokens)
    if (maxTokens <= 0) return stop(state, "max_tokens")

    const observation = yield* user<unknown>("observe", log.turns, () => behaviour.observe(before, input, turn))
    if (typeof observation !== "string") {
      return yield* wrongValue(whereabouts(environment, options, "observe", log.turns), observation, "a text")
    }
    log.messages.push({ role: "user", content: hint === undefined ? observation : `${hint}\n${observation}` })
    hint = undefined

    const conversation = conversations.get(seat) ?? (yield* log.policy.open({ id: options.id, seat }))
    conversations.set(seat, conversation)
    const asked = yield* ask(options, log, conversation, maxTokens, left)
    if (Option.isNone(asked)) return stop(state, "timeout")
    if (typeof asked.value === "string") return stop(state, asked.value)
    const answer = asked.value
    const cut = answer.finishReason === "length"

    const decoded = yield* user<ReturnType<typeof spec.action.decode>>("action", turn.turn, () =>
      spec.action.decode(Message.text(answer.reply))
    )
    let problem = Result.isFailure(decoded) ? decoded.failure : undefined
    if (cut && (problem !== undefined || !spec.action.isWhole(Message.text(answer.reply)))) log.truncated = true
    if (cut && problem !== undefined) {
      log.unparsed++
      return stop(state, "max_tokens", "unparsed")
    }
    if (Result.isSuccess(decoded)) {
      const action: unknown = decoded.success
      const after = yield* user<unknown>("act", turn.turn, () => behaviour.act(before, action, input, turn))
      if (isIllegal(after)) {
        problem = { kind: "illegal", message: after.message }
      } else {
        state = yield* stateFrom("act", turn.turn, after)
        log.valid++
        moves++
        yield* scoreTurn(environment, options, log, { before, action, after }, turn, user)
      }
    }
    if (problem !== undefined) {
      if (problem.kind === "illegal") log.illegal++
      else log.unparsed++
      if (log.unparsed + log.illegal > limits.invalidReplies) return stop(state, "invalid_action", problem.kind)
      hint = problem.message
    }
  }
})

const stop = (state: unknown, stopReason: StopReason, invalid?: "unparsed" | "illegal"): Playing => ({
  state,
  stopReason,
  invalid
})

/** One call of the policy: its answer, an ending, or nothing if the time ran out. */
const ask = (
  options: EpisodeOptions,
  log: SeatLog,
  conversation: Policy.Conversation,
  maxTokens: number,
  seconds: number
) => {
  const settings: Policy.AskOptions = {
    turn: log.turns,
    maxTokens,
    temperature: options.temperature,
    seed: Seed.derive(options.samplingSeed, log.seat, log.turns),
    train: options.trainedSeats.includes(log.seat)
  }
  return options.waits
    .during(
      options.id,
      log.turns,
      `a reply of ${log.policy.name}`,
      Effect.gen(function* () {
        const asked = yield* Clock.currentTimeMillis
        const answer = yield* conversation.ask(log.messages.slice(), settings)
        record(log, answer, settings, ((yield* Clock.currentTimeMillis) - asked) / 1000)
        return answer
      })
    )
    .pipe(
      Effect.catchTag("ContextOverflow", () => Effect.succeed("context_length" as const)),
      Effect.timeoutOption(seconds * 1000)
    )
}

const scoreTurn = Effect.fnUntraced(function* (
  environment: Any,
  options: EpisodeOptions,
  log: SeatLog,
  change: { readonly before: unknown; readonly action: unknown; readonly after: unknown },
  turn: { readonly seat: string; readonly turn: number; readonly random: Seed.RandomStream },
  user: <A>(name: string, turn: number, f: () => unknown) => Effect.Effect<A, UserCodeFailure>
) {
  const { behaviour, spec } = environment
  const score = behaviour.scoreTurn
  if (score === undefined) return
  const values = yield* user<unknown>("scoreTurn", turn.turn, () => score(change, options.scenario.input, turn))
  const checked = checkValues(options.id, spec.rewards, "turn", values)
  if (Result.isFailure(checked)) {
    return yield* new UserCodeFailure({ where: "scoreTurn", message: checked.failure.message, timedOut: false })
  }
  addTurnTerms(log, spec.rewards, checked.success)
})

const stopOf = (failure: UserCodeFailure | Policy.PolicyFailure): Playing =>
  failure._tag === "PolicyFailure"
    ? {
        state: undefined,
        stopReason: "infrastructure",
        invalid: undefined,
        failure: { kind: "infrastructure", message: `${failure.policy}: ${failure.message}` }
      }
    : {
        state: undefined,
        stopReason: "environment_error",
        invalid: undefined,
        failure: {
          kind: "environment",
          message: failure.message,
          ...(failure.stack === undefined ? {} : { stack: failure.stack })
        }
      }

/** Scores one seat and closes its trajectory. */
const conclude = Effect.fnUntraced(function* (
  environment: Any,
  options: EpisodeOptions,
  log: SeatLog,
  end: Playing,
  startedAt: number,
  seconds: number
) {
  const id = `${options.id}/${log.seat}`
  const group = `${options.batch}/${options.scenario.id}/${log.seat}`
  const common = {
    id,
    group,
    scenario: options.scenario.id,
    seat: log.seat,
    member: options.member,
    exchanges: log.exchanges,
    stopReason: end.stopReason,
    truncated: log.truncated,
    startedAt,
    seconds
  }
  if (end.failure !== undefined) {
    const reason = end.failure.kind === "infrastructure" ? "infrastructure" : "environment_error"
    return {
      ...common,
      metrics: counts(log),
      failure: end.failure,
      reward: Reward.Unscored.make({ reason, detail: end.failure.message })
    }
  }
  const ending: Ending<string> = {
    seat: log.seat,
    stopReason: end.stopReason,
    invalid: end.invalid,
    turns: log.turns,
    valid: log.valid,
    unparsed: log.unparsed,
    illegal: log.illegal
  }
  const limits = resolveLimits(environment.spec.limits)
  const scored = yield* Effect.result(scoreEpisode(environment, options, id, end.state, ending, log, limits))
  if (Result.isFailure(scored)) {
    const failure = scored.failure
    const message = failure.message
    const reason =
      failure._tag === "InvalidReward" ? "invalid_reward" : failure.timedOut ? "reward_timeout" : "reward_error"
    const stack = failure._tag === "UserCodeFailure" ? failure.stack : undefined
    return {
      ...common,
      metrics: counts(log),
      failure: { kind: "reward" as const, message, ...(stack === undefined ? {} : { stack }) },
      reward: Reward.Unscored.make({ reason, detail: message })
    }
  }
  return { ...common, metrics: { ...counts(log), ...scored.success.metrics }, reward: scored.success.reward }
})

const scoreEpisode = Effect.fnUntraced(function* (
  environment: Any,
  options: EpisodeOptions,
  trajectory: string,
  state: unknown,
  ending: Ending<string>,
  log: SeatLog,
  limits: ResolvedLimits
) {
  const { behaviour, spec } = environment
  const where = `"score" of environment "${environment.id}" (episode ${options.id})`
  options.watchdog.enter(where)
  const values = yield* options.waits.during(
    options.id,
    ending.turns,
    `"score" of environment "${environment.id}"`,
    callUser(where, limits.rewardSeconds, () =>
      behaviour.score(state, options.scenario.input, ending)
    ) as Effect.Effect<unknown, UserCodeFailure>
  )
  const episodeTerms = yield* Effect.fromResult(checkValues(trajectory, spec.rewards, "episode", values))
  const terms = { ...episodeTerms, ...log.turnTerms }
  const whereMetrics = whereabouts(environment, options, "metrics", ending.turns)
  const metrics = yield* callUser<unknown, never>(whereMetrics, limits.rewardSeconds, () =>
    behaviour.metrics === undefined ? {} : behaviour.metrics(state, options.scenario.input, ending)
  )
  if (!isRecord(metrics)) return yield* wrongValue(whereMetrics, metrics, "a record of numbers")
  const taken = Object.keys(metrics).find(isOwnFigure)
  if (taken !== undefined) return yield* wrongValue(whereMetrics, taken, "names that Ludus does not use itself")
  return {
    reward: Reward.Scored.make({ total: total(spec.rewards, terms), terms }),
    metrics: Object.fromEntries(
      Object.entries(metrics).filter((entry): entry is [string, number] => Number.isFinite(entry[1]))
    )
  }
})

const isRecord = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === "object" && value !== null && !Array.isArray(value)

/** Where even the services of an episode could not be built: every seat gets a trajectory that says so. */
const withoutServices = (
  environment: Any,
  options: EpisodeOptions,
  failure: UserCodeFailure,
  now: number
): ReadonlyArray<Trajectory> =>
  seatsOf(environment).map((seat) => ({
    id: `${options.id}/${seat}`,
    group: `${options.batch}/${options.scenario.id}/${seat}`,
    scenario: options.scenario.id,
    seat,
    member: options.member,
    exchanges: [],
    stopReason: "environment_error",
    truncated: false,
    metrics: {},
    failure: {
      kind: "environment",
      message: failure.message,
      ...(failure.stack === undefined ? {} : { stack: failure.stack })
    },
    reward: Reward.Unscored.make({ reason: "environment_error", detail: failure.message }),
    startedAt: now,
    seconds: 0
  }))
