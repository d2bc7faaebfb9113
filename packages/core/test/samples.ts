/** Small valid values for tests; each takes what a test wants to be different. */
import { type Exchange, hashIds } from "../src/exchange.ts"
import type { ScoredTrajectory } from "../src/trajectory.ts"

export const exchange = (given: Partial<Exchange> = {}): Exchange => ({
  id: "x-1",
  parent: null,
  messages: [{ role: "user", content: "Hint: start." }],
  reply: { role: "assistant", content: "7" },
  finishReason: "stop",
  policy: "toy@0",
  temperature: 1,
  tokens: { promptIds: [1, 2, 3], sampledIds: [7, 2], logprobs: [-0.5, -0.25], prefixHash: hashIds([1, 2, 3]) },
  attempts: 1,
  seconds: 0.5,
  ...given
})

export const trajectory = (given: Partial<ScoredTrajectory> = {}): ScoredTrajectory => ({
  id: "0/s/0/player",
  group: "s/player",
  scenario: "s",
  seat: "player",
  member: 0,
  exchanges: [exchange()],
  stopReason: "completed",
  truncated: false,
  metrics: { turns: 1 },
  startedAt: 1_700_000_000_000,
  seconds: 1,
  reward: { _tag: "Scored", total: 1, terms: { solved: 1 } },
  ...given
})
