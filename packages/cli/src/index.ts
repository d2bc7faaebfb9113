export { trainEnvironment, type TrainEnvironmentOptions } from "./promise.ts"
export { progressView } from "./progress-view.ts"
