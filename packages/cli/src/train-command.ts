/**
 * `ludus train`: trains a model on an environment and prints the curve.
 */
import { resolve } from "node:path"
import { providerEmbedded, providerUrl } from "@ludus/backend"
import { type BackendProvider, Progress } from "@ludus/core"
import { type EnvironmentReport, trainEnvironment, type TrainingOptions } from "@ludus/env"
import { Clock, Config, Console, Effect, Layer, Option, Redacted } from "effect"
import { Argument, Command, Flag } from "effect/cli"
import { progressView } from "./progress-view.ts"
import { renderReport } from "./report.ts"
import { bundledEnvironments, resolveEnvironment } from "./resolve-environment.ts"

const described = <A>(flag: Flag.Flag<A>, text: string) => Flag.withDescription(flag, text)

const settings = {
  environment: Argument.String("environment").pipe(
    Argument.withDescription(`${bundledEnvironments.map(({ id }) => id).join(", ")}, or a module: ./my-environment.ts`),
    Argument.withDefault("tic-tac-toe-digits")
  ),
  name: described(
    Flag.optional(Flag.String("name")),
    "name of the run; one that exists is resumed (default: a new one)"
  ),
  directory: described(Flag.optional(Flag.String("directory")), "folder of runs (default: .ludus/runs)"),
  iterations: described(Flag.withDefault(Flag.Int("iterations"), 24), "iterations in all"),
  seed: described(Flag.withDefault(Flag.Int("seed"), 0), "seed of everything random"),
  learningRate: described(Flag.optional(Flag.Finite("learning-rate")), "learning rate of the update"),
  train: described(
    Flag.withDefault(Flag.KeyValuePair("train"), {}),
    "option of the update as name=value, may be repeated: --train entropyBonus=0.05 (docs/training.md lists them)"
  ),
  groupSize: described(Flag.optional(Flag.Int("group-size")), "episodes of each scenario"),
  scenarios: described(Flag.optional(Flag.Int("scenarios")), "scenarios an iteration"),
  base: described(
    Flag.withDefault(Flag.String("base"), "bundled"),
    "base model: bundled, random (tiny, for tests), a folder, or a hub id"
  ),
  evaluateEvery: described(
    Flag.withDefault(Flag.Int("evaluate-every"), 10),
    "iterations between held-out evaluations; 0: none"
  ),
  finalScenarios: described(
    Flag.withDefault(Flag.Int("final-scenarios"), 200),
    "held-out scenarios of the comparison at the end; 0: none"
  ),
  shuffleRewards: described(
    Flag.withDefault(Flag.Boolean("shuffle-rewards"), false),
    "control experiment: shuffle rewards inside each group"
  ),
  backend: described(
    Flag.optional(Flag.String("backend")),
    "URL of a running backend; its token is read from LUDUS_TOKEN"
  ),
  threads: described(Flag.optional(Flag.Int("threads")), "threads of the embedded engine"),
  json: described(
    Flag.withDefault(Flag.Boolean("json"), false),
    "last line of standard output: JSON with the run's folder"
  )
}

/** `tic-tac-toe-digits-20261130-204107`: unique enough for a person who starts runs by hand. */
const newName = (environment: string, milliseconds: number) => {
  const stamp = new Date(milliseconds).toISOString().slice(0, 19).replace(/[-:]/gu, "").replace("T", "-")
  return `${environment}-${stamp}`
}

const baseOf = (text: string): NonNullable<TrainingOptions["base"]> =>
  text === "bundled" || text === "random"
    ? { source: text }
    : text.startsWith(".") || text.startsWith("/")
      ? { source: "path", id: resolve(text) }
      : { source: "hub", id: text }

/** A number or a boolean as such; anything else is a word. */
const plainValue = (text: string): number | boolean | string =>
  text === "true" || text === "false"
    ? text === "true"
    : text !== "" && Number.isFinite(Number(text))
      ? Number(text)
      : text

/** The option under its name, or nothing where it was not given. */
const given = (name: keyof TrainingOptions | "threads", value: Option.Option<unknown>) =>
  Option.isSome(value) ? { [name]: value.value } : {}

export const trainCommand = Command.make("train", settings, (flags) =>
  Effect.gen(function* () {
    const { environment, layer } = yield* resolveEnvironment(flags.environment)
    const name = Option.getOrElse(flags.name, () => "")
    const options: TrainingOptions = {
      name: name === "" ? newName(environment.id, yield* Clock.currentTimeMillis) : name,
      ...given("directory", flags.directory),
      iterations: flags.iterations,
      seed: flags.seed,
      base: baseOf(flags.base),
      ...given("groupSize", flags.groupSize),
      ...given("scenariosPerIteration", flags.scenarios),
      evaluate: { every: flags.evaluateEvery },
      finalEvaluation: { scenarios: flags.finalScenarios },
      shuffleRewards: flags.shuffleRewards,
      train: {
        ...Object.fromEntries(Object.entries(flags.train).map(([name, text]) => [name, plainValue(text)])),
        ...(Option.isSome(flags.learningRate) ? { learningRate: flags.learningRate.value } : {})
      }
    }
    const sink = progressView()
    const onProgress = (message: string) => sink.publish({ _tag: "Notice", level: "info", message })
    const provider = Option.isSome(flags.backend)
      ? providerUrl({ url: flags.backend.value, token: Redacted.value(yield* Config.Redacted("LUDUS_TOKEN")) })
      : providerEmbedded({ onProgress, ...given("threads", flags.threads) })
    const training: Effect.Effect<EnvironmentReport, unknown, BackendProvider> = trainEnvironment(environment, options)
    const report = yield* training.pipe(
      Effect.provide(Layer.merge(provider, layer)),
      Effect.provideService(Progress.Sink, sink)
    )
    if (flags.json) {
      yield* Effect.sync(() => process.stderr.write(`${renderReport(report)}\n`))
      yield* Console.log(JSON.stringify({ run: report.directory }))
    } else {
      yield* Console.log(renderReport(report))
    }
  })
).pipe(Command.withDescription("Train a model on an environment"))
