/**
 * Whether a value is a state of an environment, by its Schema; the check is compiled once per environment.
 */
import { Schema } from "effect"
import type { Any } from "./environment.ts"

const checks = new WeakMap<Any, (value: unknown) => boolean>()

export const isState = (environment: Any, value: unknown): boolean => {
  let check = checks.get(environment)
  if (check === undefined) {
    check = Schema.is(environment.spec.state)
    checks.set(environment, check)
  }
  return check(value)
}
