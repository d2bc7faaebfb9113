/**
 * `trainEnvironment(env)`: the whole job, from a declaration to trained weights.
 *
 * A scenario enters here, becomes episodes in `rollout` and `episode`, exchanges at the policy, a group, a train request,
 * a step, and comes back as the next policy.
 */
import {
  BackendProvider,
  type BackendService,
  type Group,
  openRun,
  type Policy,
  Progress,
  type Run,
  runTrainingLoop,
  type ScoredGroup,
  Seed,
  type TrainingError,
  type TrainReport
} from "@ludus/core"
import { Effect, Schedule, Schema } from "effect"
import { checkDeclaration, invalid, type InvalidEnvironment, isEnvironment, takeScenario } from "./check-declaration.ts"
import type { Any, Requirements } from "./environment.ts"
import { seatsOf } from "./episode.ts"
import { type Evaluation, evaluateEnvironment } from "./evaluate-environment.ts"
import { resolveLimits } from "./limits.ts"
import { rollOut } from "./rollout.ts"
import { totalBounds } from "./score.ts"
import {
  InvalidOption,
  type ResolvedOptions,
  resolveOptions,
  scenarioIndices,
  type TrainingOptions
} from "./training-options.ts"
import { show } from "./user-code.ts"
import * as Waits from "./waits.ts"
import * as Watchdog from "./watchdog.ts"

export interface EnvironmentReport extends TrainReport {
  /** Held-out games after training, where `finalEvaluation` asked for them. */
  readonly evaluations: ReadonlyArray<Evaluation>
}

/**
 * Trains the model of a run on an environment; a run that exists goes on where it stopped.
 *
 * Needs a `BackendProvider` (`@ludus/backend` has one that starts the embedded engine) and whatever services the
 * environment asks for. Options and defaults: {@link TrainingOptions}.
 *
 * Errors, before anything expensive starts: `InvalidOption`, `InvalidEnvironment`, `RunError` (name, lock, disk),
 * `BackendError` (unreachable, foreign server, missing model). While training: `FailureBudgetExceeded`, `BackendError`.
 */
export const trainEnvironment = <E extends Any>(
  environment: E,
  given: TrainingOptions = {}
): Effect.Effect<
  EnvironmentReport,
  TrainingError | InvalidOption | InvalidEnvironment,
  BackendProvider | Requirements<E>
> =>
  Effect.gen(function* () {
    if (!isEnvironment(environment)) {
      return yield* new InvalidOption({
        field: "environment",
        value: show(environment),
        expected: "a class that extends Environment.Class(...)(...)",
        advice: "Pass the class itself, not an instance of it."
      })
    }
    const options = resolveOptions({ id: environment.id, seats: seatsOf(environment) }, given)
    if (options instanceof InvalidOption) return yield* options
    yield* checkDeclaration(environment, { seed: options.seed })
    const provider = yield* BackendProvider
    const { directory, iterations, name, ...settings } = options
    const run = yield* openRun({ directory, name, config: { environment: environment.id, iterations, ...settings } })
    const backend = yield* provider.open({ stateRoot: run.backendState })
    const model = { name, base: options.base, lora: options.lora, seed: options.seed }
    const { contextLength } = yield* backend.register(model)
    const { tokensPerTurn } = resolveLimits(environment.spec.limits)
    if (tokensPerTurn >= contextLength) {
      return yield* invalid(
        environment,
        "limits.tokensPerTurn",
        String(tokensPerTurn),
        `fewer than the ${contextLength} tokens of the model's context, prompt included`
      )
    }
    const watchdog = yield* Effect.acquireRelease(
      Effect.sync(() => Watchdog.start()),
      (started) => Effect.sync(started.stop)
    )
    const waits = Waits.make()
    yield* Effect.forkScoped(reportStalls(waits, options.stallSeconds))

    const scenariosOf = (iteration: number) =>
      Effect.forEach(scenarioIndices(options, environment.behaviour.scenarios.size("train"), iteration), (index) =>
        takeScenario(environment, "train", index, options.seed)
      )
    const heldOut = yield* Effect.forEach(
      Array.from(
        { length: Math.min(options.evaluate.scenarios, environment.behaviour.scenarios.size("held-out")) },
        (_, index) => index
      ),
      (index) => takeScenario(environment, "held-out", index, options.seed)
    )
    const common = { seed: options.seed, concurrency: options.concurrency, watchdog, waits }
    const encode = Schema.encodeUnknownEffect(environment.spec.scenario)

    const report = yield* runTrainingLoop<InvalidEnvironment, never>({
      run,
      environment: environment.id,
      backend,
      model,
      iterations,
      config: options.train,
      maskTruncated: options.maskTruncated,
      budgets: options.budgets,
      rewardBounds: totalBounds(environment.spec.rewards),
      plan: (iteration) =>
        Effect.gen(function* () {
          const scenarios = yield* scenariosOf(iteration)
          return {
            episodes: scenarios.length * options.groupSize,
            scenarios: yield* Effect.forEach(scenarios, ({ id, input, seed }) =>
              Effect.map(
                Effect.mapError(encode(input), (error) =>
                  invalid(environment, `scenario ${id}`, show(input), `what its Schema describes (${error.message})`)
                ),
                (encoded) => ({ id, seed, input: encoded })
              )
            )
          }
        }),
      collect: ({ finished, iteration, onEpisode, policy }) =>
        Effect.flatMap(scenariosOf(iteration), (scenarios) =>
          rollOut(environment as Any, {
            ...common,
            batch: String(iteration),
            scenarios,
            groupSize: options.groupSize,
            policies: () => Object.fromEntries(seatsOf(environment).map((seat) => [seat, policy])),
            trainedSeats: options.seats,
            temperature: options.temperature,
            finished,
            onEpisode
          })
        ).pipe(Effect.map((groups) => groups.filter((group) => options.seats.includes(group.seat)))) as never,
      ...(options.shuffleRewards ? { transformGroups: shuffleRewards(options) } : {}),
      evaluate: {
        every: heldOut.length === 0 ? 0 : options.evaluate.every,
        run: (policy, iteration) =>
          Effect.map(
            rollOut(environment as Any, {
              ...common,
              batch: `evaluation-${iteration}`,
              scenarios: heldOut,
              groupSize: 1,
              policies: () => Object.fromEntries(seatsOf(environment).map((seat) => [seat, policy])),
              trainedSeats: [],
              temperature: options.evaluate.temperature,
              onEpisode: () => Effect.void
            }),
            (groups: ReadonlyArray<Group>) =>
              groups.filter(({ seat }) => options.seats.includes(seat)).flatMap((group) => group.trajectories)
          ) as never
      }
    })
    return { ...report, evaluations: yield* evaluateAfter(environment, options, run, backend, report) }
  }).pipe(Effect.scoped) as Effect.Effect<
    EnvironmentReport,
    TrainingError | InvalidOption | InvalidEnvironment,
    BackendProvider | Requirements<E>
  >

/** The trained model beside the untrained one and the environment's baselines, on the same held-out scenarios. */
const evaluateAfter = Effect.fnUntraced(function* (
  environment: Any,
  options: ResolvedOptions,
  run: Run,
  backend: BackendService,
  report: TrainReport
) {
  const { temperatures } = options.finalEvaluation
  const scenarios = Math.min(options.finalEvaluation.scenarios, environment.behaviour.scenarios.size("held-out"))
  if (scenarios === 0) return []
  const [seat] = options.seats
  const common = {
    scenarios,
    seed: options.seed,
    concurrency: options.concurrency,
    ...(seat === undefined ? {} : { seat })
  }
  const models = [...new Set([`${options.name}@0`, report.policy])].map((name) => backend.policy(name))
  const rows: Array<Evaluation> = []
  const evaluate = Effect.fnUntraced(function* (policy: Policy.Policy, temperature: number) {
    const [row] = yield* evaluateEnvironment(environment, [policy], { ...common, temperature })
    if (row === undefined) return
    rows.push(row)
    const metrics = Object.fromEntries(Object.entries(row.figures).filter(([, value]) => Number.isFinite(value)))
    const finished = { iteration: report.iterations, policy: row.policy, episodes: scenarios, metrics }
    yield* run.append({ kind: "evaluation-finished", ...finished, temperature })
    yield* Progress.publish({ _tag: "EvaluationFinished", ...finished, temperature })
  })
  for (const temperature of temperatures) for (const policy of models) yield* evaluate(policy, temperature)
  // a baseline has no temperature of its own
  for (const policy of environment.behaviour.baselines ?? []) yield* evaluate(policy, 1)
  return rows
})

/** Every few seconds, names the episodes that have waited for longer than they should. */
const reportStalls = (waits: Waits.Waits, seconds: number) =>
  waits.longerThan(seconds).pipe(
    Effect.flatMap((stalled) =>
      Effect.forEach(stalled.slice(0, 5), ({ episode, seconds: waited, turn, waitingFor }) =>
        Progress.publish({ _tag: "Stalled", episode, turn, waitingFor, seconds: waited })
      )
    ),
    Effect.repeat(Schedule.spaced(seconds * 1000))
  )

/** The control: each group keeps its rewards, but not who earned them. */
const shuffleRewards =
  (options: ResolvedOptions) =>
  (iteration: number, groups: ReadonlyArray<ScoredGroup>): ReadonlyArray<ScoredGroup> =>
    groups.map((group) => {
      const rewards = Seed.stream(options.seed, "shuffled-rewards", iteration, group.id).shuffle(
        group.trajectories.map((trajectory) => trajectory.reward)
      )
      return {
        ...group,
        trajectories: group.trajectories.map((trajectory, index) => ({
          ...trajectory,
          reward: rewards[index] ?? trajectory.reward
        }))
      }
    })
