/**
 * The options that a run was started with, from its `config.json`: what is not said again stays as it was.
 */
import { existsSync, readFileSync } from "node:fs"
import { join, resolve } from "node:path"
import type { TrainingOptions } from "@ludus/env"

export interface Stored {
  /** Id of the environment. */
  readonly environment: string
  readonly options: TrainingOptions
}

/** Nothing where there is no such run, or where its file cannot be read: opening the run then says what is wrong. */
export const storedOptions = (directory: string, name: string): Stored | undefined => {
  const path = join(resolve(directory, name), "config.json")
  if (!existsSync(path)) return undefined
  try {
    const { environment, ...options } = JSON.parse(readFileSync(path, "utf8")) as TrainingOptions & {
      readonly environment: string
    }
    return { environment, options }
  } catch {
    return undefined
  }
}
