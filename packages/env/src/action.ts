/**
 * Text actions: how the reply of a policy becomes a typed action. One Schema gives the type, the decoding, the error that
 * the policy reads, and the instructions that an observation can quote.
 *
 * ```ts
 * Action.tag("move", Schema.Literals(["left", "right"]))   // <move>left</move>
 * Action.pattern(/^\s*([1-9])/u, Schema.FiniteFromString)  // the first group of a regular expression
 * Action.json(Schema.Struct({ row: Schema.Int }))          // a JSON value, fenced or bare
 * Action.text()                                            // the whole reply
 * ```
 */
import { Result, Schema } from "effect"

/** Why a reply held no action: `unparsed` where the form was wrong, `illegal` where the environment's rules forbid it. */
export interface InvalidReply {
  readonly kind: "unparsed" | "illegal"
  /** What the policy is told, where the environment lets it try again. */
  readonly message: string
}

export interface Action<out A> {
  readonly form: "tag" | "pattern" | "json" | "text"
  /**
   * Whether a reply that was cut by its token limit holds a whole action, given that it decodes: a closed tag does, free
   * text does not ("The answer is 4" may have been 42).
   */
  readonly isWhole: (reply: string) => boolean
  /** One sentence that tells a policy how to answer. */
  readonly instructions: string
  readonly decode: (reply: string) => Result.Result<A, InvalidReply>
  /** The Schema behind it, for documentation and checks. */
  readonly schema: Schema.Top
}

const unparsed = (message: string) => Result.fail<InvalidReply>({ kind: "unparsed", message })

/** Thinking is not part of the answer. An unclosed block hides everything after it: the answer was never reached. */
const withoutThinking = (reply: string) => reply.replace(/<think>[\s\S]*?(<\/think>|$)/gu, "")

const decodeWith = <A>(schema: Schema.Codec<A, string>, text: string, where: string): Result.Result<A, InvalidReply> =>
  Result.mapError(Schema.decodeUnknownResult(schema)(text), (error) => ({
    kind: "unparsed" as const,
    message: `${where} is ${JSON.stringify(text)}: ${error.message}`
  }))

/**
 * An XML-like element, `<name>...</name>`, anywhere in the reply. Its text is trimmed and decoded. Several elements are
 * an error unless all say the same.
 */
export const tag = <A>(name: string, schema: Schema.Codec<A, string>): Action<A> => {
  if (!/^[A-Za-z][A-Za-z0-9_-]*$/u.test(name))
    throw new TypeError(`Action.tag: ${JSON.stringify(name)} is no element name`)
  const element = new RegExp(`<${name}>([\\s\\S]*?)</${name}>`, "gu")
  return {
    form: "tag",
    isWhole: () => true,
    schema,
    instructions: `Answer with <${name}>...</${name}>.`,
    decode: (reply) => {
      const found = new Set([...withoutThinking(reply).matchAll(element)].map((match) => (match[1] ?? "").trim()))
      const [text] = found
      if (text === undefined) return unparsed(`No <${name}>...</${name}> in the reply.`)
      if (text === "") return unparsed(`<${name}> is empty.`)
      if (found.size > 1) return unparsed(`${found.size} different <${name}> elements in the reply; expected one.`)
      return decodeWith(schema, text, `<${name}>`)
    }
  }
}

/**
 * The first capture group of a regular expression (the whole match where it has none). In a reply that was cut by its
 * token limit, a match that ends with the reply may lack its end; `fixedLength` says that it cannot: one digit is one digit.
 */
export const pattern = <A>(
  expression: RegExp,
  schema: Schema.Codec<A, string>,
  options?: { readonly fixedLength?: boolean }
): Action<A> => {
  const once = new RegExp(expression.source, expression.flags.replace(/[gy]/gu, ""))
  return {
    form: "pattern",
    isWhole: (reply) => {
      if (options?.fixedLength === true) return true
      const match = once.exec(withoutThinking(reply))
      return match !== null && match.index + match[0].length < withoutThinking(reply).trimEnd().length
    },
    schema,
    instructions: `Answer in the form ${String(expression)}.`,
    decode: (reply) => {
      const match = once.exec(withoutThinking(reply))
      if (match === null) return unparsed(`The reply does not match ${String(expression)}.`)
      return decodeWith(schema, match[1] ?? match[0], "The match")
    }
  }
}

/** A JSON value: the whole reply, or the last fenced code block in it. */
export const json = <A, I>(schema: Schema.Codec<A, I>): Action<A> => ({
  form: "json",
  isWhole: () => true,
  schema,
  instructions: "Answer with JSON only.",
  decode: (reply) => {
    const visible = withoutThinking(reply).trim()
    const fenced = [...visible.matchAll(/```(?:json)?\s*\n([\s\S]*?)```/gu)].at(-1)?.[1]
    return Result.mapError(
      Schema.decodeUnknownResult(Schema.fromJsonString(schema))((fenced ?? visible).trim()),
      (error) => ({
        kind: "unparsed" as const,
        message: `The reply is not the expected JSON: ${error.message}`
      })
    )
  }
})

/** The whole reply, trimmed. */
export function text(): Action<string>
export function text<A>(schema: Schema.Codec<A, string>): Action<A>
export function text<A>(schema?: Schema.Codec<A, string>): Action<A> | Action<string> {
  const common = { form: "text", isWhole: () => false, instructions: "Answer in plain text." } as const
  if (schema === undefined) {
    return { ...common, schema: Schema.String, decode: (reply) => Result.succeed(withoutThinking(reply).trim()) }
  }
  return { ...common, schema, decode: (reply) => decodeWith(schema, withoutThinking(reply).trim(), "The reply") }
}

const IllegalTypeId = "~@ludus/env/Illegal"

/** An action that the rules forbid: the state stays as it was. Made with {@link illegal}, returned by `act`. */
export interface Illegal {
  readonly [IllegalTypeId]: true
  readonly message: string
}

/** `act` returns this where the rules forbid the action. */
export const illegal = (message: string): Illegal => ({ [IllegalTypeId]: true, message })

export const isIllegal = (value: unknown): value is Illegal =>
  typeof value === "object" && value !== null && IllegalTypeId in value
