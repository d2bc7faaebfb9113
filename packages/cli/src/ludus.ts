/**
 * The `ludus` command.
 */
import { Command } from "effect/cli"
import { trainCommand } from "./train-command.ts"

export const ludus = Command.make("ludus").pipe(
  Command.withDescription("Train language-model agents by reinforcement learning, from a typed environment class."),
  Command.withSubcommands([trainCommand])
)
