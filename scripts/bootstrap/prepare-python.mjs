/**
 * Runs on the installed Node: finds or makes the Python environment, telling the user on the standard error, and prints it as
 * one line of JSON.
 */
import { pythonEnvironment } from "@ludus/backend"
import { Effect } from "effect"
import { main, say } from "./say.mjs"

const program = pythonEnvironment({ onProgress: (line) => Effect.sync(() => say(line)) })

await main(() =>
  Effect.runPromise(
    Effect.match(program, {
      onSuccess: (environment) => {
        console.log(JSON.stringify(environment))
        return 0
      },
      onFailure: (error) => {
        say(`${error.message}\n${error.advice}`)
        return 1
      }
    })
  )
)
