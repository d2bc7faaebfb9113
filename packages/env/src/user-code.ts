/**
 * Calls of the user's own functions: a value or an Effect, in time, with every throw turned into one typed failure that
 * keeps the stack.
 */
import { Cause, Effect, Exit, Fiber, Option, Schema, Scope } from "effect"
import type { OrEffect } from "./environment.ts"

/** The environment's own code failed: it threw, its Effect failed, it gave something else, or it took too long. */
export class UserCodeFailure extends Schema.TaggedError<UserCodeFailure>()("UserCodeFailure", {
  where: Schema.String,
  message: Schema.String,
  stack: Schema.optionalKey(Schema.String),
  timedOut: Schema.Boolean
}) {}

/** Anything as text; an object without a prototype has no `toString`. */
export const show = (value: unknown): string => {
  try {
    if (typeof value === "string") return JSON.stringify(value)
    if (typeof value === "bigint") return `${value}n`
    if (typeof value === "object" && value !== null) return JSON.stringify(value)
    return String(value)
  } catch {
    return Object.prototype.toString.call(value)
  }
}

const failure = (where: string, thrown: unknown): UserCodeFailure =>
  new UserCodeFailure({
    where,
    message: `${where} failed: ${thrown instanceof Error ? `${thrown.name}: ${thrown.message}` : show(thrown)}`,
    ...(thrown instanceof Error && thrown.stack !== undefined ? { stack: thrown.stack } : {}),
    timedOut: false
  })

/** What a function gave is not what it must give. */
export const wrongValue = (where: string, value: unknown, expected: string): UserCodeFailure =>
  new UserCodeFailure({
    where,
    message: `${where} gave ${show(value)}; expected ${expected}`,
    timedOut: false
  })

const isThenable = (value: unknown): value is PromiseLike<unknown> =>
  typeof value === "object" && value !== null && "then" in value && typeof value.then === "function"

/** A Promise would be taken for a state or a truth; its rejection must not end the process either. */
const isPromise = (where: string, value: PromiseLike<unknown>): UserCodeFailure => {
  value.then(undefined, () => undefined)
  return new UserCodeFailure({
    where,
    message: `${where} gave a Promise; return a value or an Effect: Effect.promise(() => ...)`,
    timedOut: false
  })
}

/**
 * Runs `f` and waits for its Effect, if it returns one, for at most `seconds`. A plain value costs no fiber hop. An Effect
 * that cannot be interrupted is left behind when its time is up.
 */
export const callUser = <A, R>(
  where: string,
  seconds: number,
  f: () => OrEffect<A, R>
): Effect.Effect<A, UserCodeFailure, R> =>
  Effect.suspend(() => {
    let value: OrEffect<A, R>
    try {
      value = f()
    } catch (thrown) {
      return Effect.fail(failure(where, thrown))
    }
    if (Effect.isEffect(value)) return withDeadline(where, seconds, value)
    return isThenable(value) ? Effect.fail(isPromise(where, value)) : Effect.succeed(value)
  })

const withDeadline = <A, R>(where: string, seconds: number, effect: Effect.Effect<A, unknown, R>) => {
  // an Effect that interrupts itself is a failure too; a real interruption of the episode goes on by itself
  const guarded = Effect.catchCause(effect, (cause) => Effect.fail(failure(where, Cause.squash(cause))))
  return Effect.gen(function* () {
    const fiber = yield* Effect.forkDetach(guarded)
    const finished = yield* Fiber.join(fiber).pipe(
      Effect.timeoutOption(seconds * 1000),
      Effect.onInterrupt(() => Effect.andThen(Effect.forkDetach(Fiber.interrupt(fiber)), awaitAtMost(fiber, seconds)))
    )
    if (Option.isSome(finished)) return finished.value
    yield* Effect.forkDetach(Fiber.interrupt(fiber))
    return yield* new UserCodeFailure({ where, message: `${where} did not answer within ${seconds} s`, timedOut: true })
  })
}

/**
 * The exit of a fiber, or nothing after `seconds`. It works where nothing can be interrupted, during clean-up, and so
 * does not use Effect's own timeout, which would wait there for the loser of its race.
 */
const awaitAtMost = <A, E>(fiber: Fiber.Fiber<A, E>, seconds: number): Effect.Effect<Option.Option<Exit.Exit<A, E>>> =>
  Effect.callback((resume) => {
    const timer = setTimeout(() => resume(Effect.succeedNone), seconds * 1000)
    fiber.addObserver((exit) => {
      clearTimeout(timer)
      resume(Effect.succeedSome(exit))
    })
  })

/**
 * Runs `play` in a scope of its own and closes it, waiting at most `seconds` for its finalizers: one that throws or never
 * ends is a failure of the user's code, and cannot hold the run.
 */
export const inOwnScope = <A, E, R>(
  where: string,
  seconds: number,
  play: Effect.Effect<A, E, R>
): Effect.Effect<A, E | UserCodeFailure, Exclude<R, Scope.Scope>> =>
  Effect.uninterruptibleMask((restore) =>
    Effect.gen(function* () {
      const scope = yield* Scope.make()
      const exit = yield* Effect.exit(restore(Scope.provide(play, scope)))
      const closing = yield* Effect.forkDetach(Effect.uninterruptible(Scope.close(scope, exit)))
      const closed = yield* awaitAtMost(closing, seconds)
      if (Exit.isFailure(exit)) return yield* exit
      if (Option.isNone(closed)) {
        return yield* new UserCodeFailure({
          where,
          message: `${where} did not end within ${seconds} s`,
          timedOut: true
        })
      }
      if (Exit.isFailure(closed.value)) return yield* failure(where, Cause.squash(closed.value.cause))
      return exit.value
    })
  )
