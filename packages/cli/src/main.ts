#!/usr/bin/env node
/**
 * Entry point of the `ludus` command. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
 */
import { readFileSync } from "node:fs"
import { NodeRuntime, NodeServices } from "@effect/platform-node"
import { Cause, Effect, Exit, Runtime } from "effect"
import { CliError, Command } from "effect/cli"
import { ludus } from "./ludus.ts"

const [major = 0, minor = 0] = process.versions.node.split(".").map(Number)
if (major < 22 || (major === 22 && minor < 19)) {
  process.stderr.write(`ludus needs Node 22.19 or newer; this is ${process.versions.node}.\n`)
  process.exit(1)
}

const { version } = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8")) as {
  readonly version: string
}

/** Fields of typed errors, in the order in which a person reads them. */
const details = (error: Error): ReadonlyArray<string> =>
  (["field", "value", "expected", "advice"] as const).flatMap((name) => {
    const text: unknown = name in error ? error[name as keyof Error] : undefined
    if (typeof text !== "string" || text === "" || error.message.includes(text)) return []
    return [name === "advice" ? text : `  ${name}: ${text}`]
  })

/** What a person can act on: the message of a typed error and its details, without a stack; the stack only of a defect. */
const describe = (cause: Cause.Cause<unknown>): string => {
  const error = Cause.squash(cause)
  if (!(error instanceof Error)) return String(error)
  return "_tag" in error ? [error.message, ...details(error)].join("\n") : (error.stack ?? error.message)
}

/** The command line itself was wrong: what is wrong stands above already. */
const isUsage = (cause: Cause.Cause<unknown>) => CliError.isCliError(Cause.squash(cause))

// the first Ctrl-C stops in good order; a second one does not wait for it
process.once("SIGINT", () => process.once("SIGINT", () => process.exit(130)))

Command.run(ludus, { version }).pipe(
  Effect.provide(NodeServices.layer),
  Effect.onExit((exit) =>
    Exit.isFailure(exit) && !Cause.hasInterruptsOnly(exit.cause) && !isUsage(exit.cause)
      ? Effect.sync(() => process.stderr.write(`ludus: ${describe(exit.cause)}\n`))
      : Effect.void
  ),
  NodeRuntime.runMain({
    disableErrorReporting: true,
    teardown: (exit, onExit) =>
      Exit.isFailure(exit) && isUsage(exit.cause) ? onExit(2) : Runtime.defaultTeardown(exit, onExit)
  })
)
