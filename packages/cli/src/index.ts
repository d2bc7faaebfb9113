/**
 * The Promise face of Ludus. Everything here has an Effect of the same name in `@ludus/env` and `@ludus/core`.
 */
export { trainEnvironment, type TrainEnvironmentOptions } from "./train-environment.ts"
export {
  connectBackend,
  type PromiseBackend,
  type PromiseModel,
  type RolloutContext,
  startBackend,
  type StartBackendOptions
} from "./start-backend.ts"
export { progressView } from "./progress-view.ts"
