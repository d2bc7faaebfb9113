/**
 * Why an episode ended for a seat: one closed list, counted in the metrics of every iteration.
 */
import { Schema } from "effect"

/**
 * | reason | meaning |
 * |---|---|
 * | `completed` | the environment said that the episode is over |
 * | `max_turns` | the declared number of turns was used up |
 * | `max_tokens` | a reply was cut by its token limit and its action did not decode, or the episode's token limit was met |
 * | `context_length` | the next prompt would not fit the model's context |
 * | `tool_budget` | the declared number of tool calls was used up |
 * | `invalid_action` | a reply held no legal action and the environment ends on that |
 * | `repeated_call` | the same tool call came too often in a row |
 * | `timeout` | the episode met its time limit |
 * | `infrastructure` | a request failed for good after its retries: the trajectory is dropped and counted |
 * | `environment_error` | the environment's own code threw: the trajectory is dropped and counted |
 * | `interrupted` | the run was stopped |
 */
export const StopReason = Schema.Literals([
  "completed",
  "max_turns",
  "max_tokens",
  "context_length",
  "tool_budget",
  "invalid_action",
  "repeated_call",
  "timeout",
  "infrastructure",
  "environment_error",
  "interrupted"
])
export type StopReason = typeof StopReason.Type
