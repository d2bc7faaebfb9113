/**
 * What is refused before a train request leaves: options that the backend does not know, and numbers that JSON does not
 * have (they would arrive as null).
 */
import { Effect, Schema, SchemaIssue } from "effect"
import { BackendError } from "./backend.ts"
import { type Capabilities, TrainRequest } from "./protocol.ts"

const encode = Schema.encodeUnknownEffect(TrainRequest)
const issues = SchemaIssue.makeFormatterStandardSchemaV1()

/** The encoded request, or why it is refused, with the field's path. */
export const checkTrainRequest = (
  request: TrainRequest,
  capabilities: Capabilities
): Effect.Effect<typeof TrainRequest.Encoded, BackendError> =>
  Effect.gen(function* () {
    const unknown = Object.entries(request.config).find(
      ([name, value]) => value !== undefined && !capabilities.options.includes(name)
    )
    if (unknown !== undefined) {
      return yield* refuse(
        `config.${unknown[0]}`,
        unknown[1],
        `one of ${capabilities.options.join(", ")}`,
        "this backend does not know it"
      )
    }
    const { loss } = request.config
    if (loss !== undefined && !capabilities.losses.includes(loss)) {
      return yield* refuse(
        "config.loss",
        loss,
        `one of ${capabilities.losses.join(", ")}`,
        "this backend does not offer it"
      )
    }
    return yield* Effect.catchTag(encode(request), "SchemaError", (error) => {
      const first = issues(error.issue).issues[0]
      const path = (first?.path ?? []).map((part) => (typeof part === "object" ? part.key : part))
      const value = path.reduce<unknown>(
        (at, key) => (typeof at === "object" && at !== null ? Reflect.get(at, key) : undefined),
        request
      )
      return refuse(path.map(String).join("."), value, first?.message ?? error.message, "it cannot be sent")
    })
  })

const refuse = (field: string, value: unknown, expected: string, why: string): BackendError =>
  new BackendError({
    code: "invalid_request",
    message: `The train request was not sent: ${field} is ${String(value)}; ${why}.`,
    field,
    value: String(value),
    expected,
    advice: "Correct the field. Nothing was trained."
  })
