/**
 * Options of `trainEnvironment` and their defaults. A name that is not here is refused, never ignored.
 */
import { type FailureBudgets, Protocol, Seed } from "@ludus/core"
import { Schema, SchemaIssue } from "effect"

const count = (minimum: number) => Schema.Int.check(Schema.isGreaterThanOrEqualTo(minimum))

const BaseModel = Schema.Struct({
  ...Protocol.BaseModelSpec.fields,
  source: Schema.optionalKey(Protocol.BaseModelSpec.fields.source)
})

const Budgets = Schema.Struct({
  environment: Schema.optionalKey(Schema.Finite.check(Schema.isBetween({ minimum: 0, maximum: 1 }))),
  infrastructure: Schema.optionalKey(Schema.Finite.check(Schema.isBetween({ minimum: 0, maximum: 1 })))
})

export const TrainingOptions = Schema.Struct({
  /** Name of the run, and of the model. Default: the environment's id. A run that exists is resumed. */
  name: Schema.optionalKey(Protocol.ModelName),
  /** Folder of runs. Default `.ludus/runs`. */
  directory: Schema.optionalKey(Schema.String),
  /** Default: the bundled SmolLM2-135M-Instruct. */
  base: Schema.optionalKey(BaseModel),
  /** Default: rank 8, alpha 16, all linear layers, dropout 0. */
  lora: Schema.optionalKey(
    Schema.Struct({
      ...Protocol.LoraSpec.fields,
      rank: Schema.optionalKey(Protocol.LoraSpec.fields.rank),
      alpha: Schema.optionalKey(Protocol.LoraSpec.fields.alpha)
    })
  ),
  /** Default 0. */
  seed: Schema.optionalKey(Schema.Int),
  /** Iterations in all, earlier sessions of the run included. Default 50. */
  iterations: Schema.optionalKey(count(0)),
  /** Episodes of each scenario; rewards are compared among them. Default 8. */
  groupSize: Schema.optionalKey(count(2)),
  /** Default 8; 6 with the bundled model. */
  scenariosPerIteration: Schema.optionalKey(count(1)),
  /** `in-order` (default), or `shuffled` by the seed (finite lists only). */
  order: Schema.optionalKey(Schema.Literals(["in-order", "shuffled"])),
  /** Above 0, at most 2. Default 1. */
  temperature: Schema.optionalKey(Schema.Finite.check(Schema.isBetween({ minimum: 0.001, maximum: 2 }))),
  /** Options of the update. Defaults: docs/training.md. */
  train: Schema.optionalKey(Protocol.TrainConfig),
  /** Trajectories with a cut reply stay in their group's baseline but are not trained. Default false. */
  maskTruncated: Schema.optionalKey(Schema.Boolean),
  /** Episodes at the same time. Default 64. */
  concurrency: Schema.optionalKey(count(1)),
  /** Seats whose policy is trained. Default: all. */
  seats: Schema.optionalKey(Schema.Array(Schema.String)),
  evaluate: Schema.optionalKey(
    Schema.Struct({
      /** Iterations between evaluations; 0 turns them off. Default 10. */
      every: Schema.optionalKey(count(0)),
      /** Held-out scenarios. Default 64. */
      scenarios: Schema.optionalKey(count(1)),
      /** Default 1. */
      temperature: Schema.optionalKey(Schema.Finite.check(Schema.isGreaterThanOrEqualTo(0)))
    })
  ),
  /** After the last iteration: the trained model, the untrained one and the environment's baselines, side by side. */
  finalEvaluation: Schema.optionalKey(
    Schema.Struct({
      /** Held-out scenarios; 0 (default) turns it off. */
      scenarios: Schema.optionalKey(count(0)),
      /** Default `[0, 1]`: greedy, and as it is. */
      temperatures: Schema.optionalKey(Schema.Array(Schema.Finite.check(Schema.isGreaterThanOrEqualTo(0))))
    })
  ),
  budgets: Schema.optionalKey(Budgets),
  /** Seconds after which a waiting episode is reported. Default 60. */
  stallSeconds: Schema.optionalKey(Schema.Finite.check(Schema.isGreaterThan(0))),
  /** A control experiment: rewards are shuffled inside each group, so that nothing can be learned from them. */
  shuffleRewards: Schema.optionalKey(Schema.Boolean)
})
export type TrainingOptions = typeof TrainingOptions.Type

/** An option of `trainEnvironment` that cannot be used. */
export class InvalidOption extends Schema.TaggedError<InvalidOption>()("InvalidOption", {
  field: Schema.String,
  value: Schema.String,
  expected: Schema.String,
  advice: Schema.String
}) {
  override get message() {
    return `Option ${this.field} is ${this.value}; expected ${this.expected}. ${this.advice}`
  }
}

export interface ResolvedOptions {
  readonly name: string
  readonly directory: string
  readonly base: Protocol.BaseModelSpec
  readonly lora: Protocol.LoraSpec
  readonly seed: number
  readonly iterations: number
  readonly groupSize: number
  readonly scenariosPerIteration: number
  readonly order: "in-order" | "shuffled"
  readonly temperature: number
  readonly train: Protocol.TrainConfig
  readonly maskTruncated: boolean
  readonly concurrency: number
  readonly seats: ReadonlyArray<string>
  readonly evaluate: { readonly every: number; readonly scenarios: number; readonly temperature: number }
  readonly finalEvaluation: { readonly scenarios: number; readonly temperatures: ReadonlyArray<number> }
  readonly budgets: FailureBudgets
  readonly stallSeconds: number
  readonly shuffleRewards: boolean
}

/**
 * The profile of the bundled 135M-parameter model: it takes a far larger learning rate than models of 3B parameters and
 * more, and needs the whole-batch denominator, since with Adam one surviving group would otherwise take a full-size step.
 */
const SMALL_MODEL: Protocol.TrainConfig = {
  learningRate: 6e-4,
  weightDecay: 0,
  gradClip: 0.5,
  entropyBonus: 0.03,
  denominator: "batch"
}

const decode = Schema.decodeUnknownResult(TrainingOptions)
const issuesOf = SchemaIssue.makeFormatterStandardSchemaV1()

/** Checks the options and fills in the defaults. */
export const resolveOptions = (
  environment: { readonly id: string; readonly seats: ReadonlyArray<string> },
  given: TrainingOptions
): ResolvedOptions | InvalidOption => {
  const decoded = decode(given, { onExcessProperty: "error", errors: "all" })
  if (decoded._tag === "Failure") return invalidOption(given, decoded.failure)
  const options = decoded.success
  const base: Protocol.BaseModelSpec = { ...options.base, source: options.base?.source ?? "bundled" }
  const small = base.source === "bundled" || base.source === "random"
  const unknown = options.seats?.find((seat) => !environment.seats.includes(seat))
  if (unknown !== undefined || options.seats?.length === 0) {
    return new InvalidOption({
      field: "seats",
      value: JSON.stringify(options.seats),
      expected: `one or more of ${environment.seats.join(", ")}`,
      advice: "Name seats that the environment declares."
    })
  }
  return {
    name: options.name ?? environment.id,
    directory: options.directory ?? ".ludus/runs",
    base,
    lora: { ...options.lora, rank: options.lora?.rank ?? 8, alpha: options.lora?.alpha ?? 16 },
    seed: options.seed ?? 0,
    iterations: options.iterations ?? 50,
    groupSize: options.groupSize ?? 8,
    scenariosPerIteration: options.scenariosPerIteration ?? (small ? 6 : 8),
    order: options.order ?? "in-order",
    temperature: options.temperature ?? 1,
    train: { ...(small ? SMALL_MODEL : {}), ...options.train },
    maskTruncated: options.maskTruncated ?? false,
    concurrency: options.concurrency ?? 64,
    seats: options.seats ?? environment.seats,
    evaluate: {
      every: options.evaluate?.every ?? 10,
      scenarios: options.evaluate?.scenarios ?? 64,
      temperature: options.evaluate?.temperature ?? 1
    },
    finalEvaluation: {
      scenarios: options.finalEvaluation?.scenarios ?? 0,
      temperatures: options.finalEvaluation?.temperatures ?? [0, 1]
    },
    budgets: options.budgets ?? {},
    stallSeconds: options.stallSeconds ?? 60,
    shuffleRewards: options.shuffleRewards ?? false
  }
}

const invalidOption = (given: unknown, error: Schema.SchemaError): InvalidOption => {
  const issue = issuesOf(error.issue).issues[0]
  const path = (issue?.path ?? []).map((part) => String(typeof part === "object" ? part.key : part))
  const value = path.reduce<unknown>(
    (at, name) => (typeof at === "object" && at !== null ? (at as Readonly<Record<string, unknown>>)[name] : undefined),
    given
  )
  return new InvalidOption({
    field: path.join(".") || "options",
    value: JSON.stringify(value) ?? "missing",
    expected: (issue?.message ?? error.message).replace(/^Expected /u, ""),
    advice: `Known options: ${Object.keys(TrainingOptions.fields).join(", ")}.`
  })
}

/** Indices of the scenarios of one iteration: a cursor through the split, or a shuffled one. */
export const scenarioIndices = (options: ResolvedOptions, size: number, iteration: number): ReadonlyArray<number> => {
  const first = iteration * options.scenariosPerIteration
  return Array.from({ length: options.scenariosPerIteration }, (_, offset) => {
    const position = first + offset
    if (options.order === "in-order" || !Number.isFinite(size)) return position
    // each round through the list has its own order; the index keeps counting, so that ids and seeds stay unique
    const round = Math.floor(position / size)
    const order = Seed.stream(options.seed, "order", round).shuffle(
      Array.from({ length: size }, (_item, index) => index)
    )
    return round * size + (order[position % size] ?? 0)
  })
}
