/**
 * `ludus train`: trains a model on an environment and prints the curve.
 */
import { resolve } from "node:path"
import { providerEmbedded, providerUrl } from "@ludus/backend"
import { type BackendProvider, Progress } from "@ludus/core"
import { type EnvironmentReport, InvalidOption, trainEnvironment, type TrainingOptions } from "@ludus/env"
import { Clock, Config, Console, Effect, Layer, Option, Redacted, Schema } from "effect"
import { Argument, Command, Flag } from "effect/cli"
import { progressView } from "./progress-view.ts"
import { renderReport } from "./report.ts"
import { bundledEnvironments, resolveEnvironment } from "./resolve-environment.ts"
import { storedOptions } from "./stored-options.ts"

const described = <A>(flag: Flag.Flag<A>, text: string) => Flag.withDescription(flag, text)

const settings = {
  environment: Argument.String("environment").pipe(
    Argument.withDescription(`${bundledEnvironments.map(({ id }) => id).join(", ")}, or a module: ./my-environment.ts`),
    Argument.optional
  ),
  name: described(
    Flag.optional(Flag.String("name")),
    "name of the run; one that exists is resumed (default: a new one)"
  ),
  directory: described(Flag.optional(Flag.String("directory")), "folder of runs (default: .ludus/runs)"),
  iterations: described(Flag.optional(Flag.Int("iterations")), "iterations in all (default: 24)"),
  seed: described(Flag.optional(Flag.Int("seed")), "seed of everything random (default: 0)"),
  learningRate: described(Flag.optional(Flag.Finite("learning-rate")), "learning rate of the update"),
  train: described(
    Flag.withDefault(Flag.KeyValuePair("train"), {}),
    "option of the update as name=value, may be repeated: --train entropyBonus=0.05 (docs/training.md lists them)"
  ),
  groupSize: described(Flag.optional(Flag.Int("group-size")), "episodes of each scenario"),
  scenarios: described(Flag.optional(Flag.Int("scenarios")), "scenarios an iteration"),
  base: described(
    Flag.optional(Flag.String("base")),
    "base model: bundled (default), random (tiny, untrained, only to try things out), a folder, or a hub id like owner/name"
  ),
  evaluateEvery: described(
    Flag.optional(Flag.Int("evaluate-every")),
    "iterations between held-out evaluations, after the last one too; 0: none (default: 10)"
  ),
  finalScenarios: described(
    Flag.optional(Flag.Int("final-scenarios")),
    "held-out scenarios of the comparison at the end; 0: none (default: 200)"
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

export class MissingToken extends Schema.TaggedError<MissingToken>()("MissingToken", { backend: Schema.String }) {
  override get message() {
    return `The backend at ${this.backend} needs a token: set LUDUS_TOKEN to it.`
  }
}

const tokenFor = (backend: string) =>
  Effect.mapError(Config.Redacted("LUDUS_TOKEN"), () => new MissingToken({ backend }))

type Flags = Command.Command.Config.Infer<typeof settings>

/** What the user said, over what the run was started with, over the command's own defaults. */
const optionsOf = (flags: Flags, name: string, stored: TrainingOptions | undefined): TrainingOptions => ({
  iterations: 24,
  finalEvaluation: { scenarios: 200 },
  ...stored,
  name,
  ...given("directory", flags.directory),
  ...given("iterations", flags.iterations),
  ...given("seed", flags.seed),
  ...given("base", Option.map(flags.base, baseOf)),
  ...given("groupSize", flags.groupSize),
  ...given("scenariosPerIteration", flags.scenarios),
  ...given(
    "evaluate",
    Option.map(flags.evaluateEvery, (every) => ({ ...stored?.evaluate, every }))
  ),
  ...given(
    "finalEvaluation",
    Option.map(flags.finalScenarios, (scenarios) => ({ ...stored?.finalEvaluation, scenarios }))
  ),
  ...(flags.shuffleRewards ? { shuffleRewards: true } : {}),
  train: {
    ...stored?.train,
    ...Object.fromEntries(Object.entries(flags.train).map(([key, text]) => [key, plainValue(text)])),
    ...(Option.isSome(flags.learningRate) ? { learningRate: flags.learningRate.value } : {})
  }
})

export const trainCommand = Command.make("train", settings, (flags) =>
  Effect.gen(function* () {
    const asked = Option.getOrUndefined(flags.name)
    const directory = Option.getOrElse(flags.directory, () => ".ludus/runs")
    const stored = asked === undefined ? undefined : storedOptions(directory, asked)
    const { environment, layer } = yield* resolveEnvironment(
      Option.getOrElse(flags.environment, () => stored?.environment ?? "tic-tac-toe-digits")
    )
    const base = Option.getOrUndefined(flags.base)
    if (base !== undefined && baseOf(base).source === "hub" && !base.includes("/")) {
      return yield* new InvalidOption({
        field: "base",
        value: JSON.stringify(base),
        expected: "bundled, random, a folder like ./model, or a hub id like owner/name",
        advice: "Check the spelling."
      })
    }
    const options = optionsOf(flags, asked ?? newName(environment.id, yield* Clock.currentTimeMillis), stored?.options)
    const sink = progressView()
    const onProgress = (message: string) => sink.publish({ _tag: "Notice", level: "info", message })
    const provider = Option.isSome(flags.backend)
      ? providerUrl({ url: flags.backend.value, token: Redacted.value(yield* tokenFor(flags.backend.value)) })
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
