export * as Message from "./message.ts"
export * as Reward from "./reward.ts"
export * as Seed from "./seed.ts"
export { Exchange, FinishReason, hashIds, Tokens } from "./exchange.ts"
export { StopReason } from "./stop-reason.ts"
export { Failure, FailureKind, isScored, ScoredTrajectory, Trajectory } from "./trajectory.ts"
export { DropCause, Group, type ScoredGroup, toScoredGroup } from "./group.ts"
export { BackendProvider } from "./backend/backend-provider.ts"
export { batchFigures, isOwnFigure, mean, standardDeviation } from "./batch-figures.ts"
export { FailureBudgetExceeded, type FailureBudgets } from "./failure-budget.ts"
export {
  NonFiniteUpdates,
  runTrainingLoop,
  type TrainingError,
  type TrainingLoop,
  type TrainReport
} from "./training-loop.ts"
export * as Policy from "./policy.ts"
export { Backend, BackendError, type BackendService } from "./backend/backend.ts"
export * as Protocol from "./backend/protocol.ts"
export * as Progress from "./progress.ts"
export { InvalidTrainRequest, type TrainNotice, toTrainRequest } from "./train-request.ts"
export { type Run, openRun, type RunOptions } from "./run/run-directory.ts"
export { RunError } from "./run/run-error.ts"
export { JournalEvent, type JournalEntry } from "./run/journal-event.ts"
export { readJournal } from "./run/journal.ts"
export { MetricsRow, readMetrics } from "./run/metrics.ts"
export type { Resume } from "./run/resume.ts"
export { connect, type ConnectOptions, layerHttp } from "./backend/http-backend.ts"
export type { Deadlines } from "./backend/link.ts"
export type { RetryPolicy } from "./http/retry.ts"
export { openaiPolicy, type OpenAIPolicyOptions } from "./openai-policy.ts"
export * as TrainableModel from "./trainable-model.ts"
export type { EpisodeClient, RegisteredModel, TrainableModelOptions } from "./trainable-model.ts"
export { DataError } from "./data/data-error.ts"
export { type ChatFile, type ReadChatOptions, readChatFile } from "./data/read-chat-file.ts"
export { type BestOptions, readSavedTrajectories, type SavedTrajectories } from "./data/saved-trajectories.ts"
export type { ShareGptTags } from "./data/sharegpt.ts"
export { makeRecorder, type Recorder, type RecorderOptions } from "./recorder.ts"
export {
  exceptionRate,
  gatherGroups,
  type GatherOptions,
  InvalidGathering,
  type Member,
  type Played,
  TooManyExceptions
} from "./gather.ts"
export { LostExchange, UnfinishedReply } from "./lost-exchange.ts"
