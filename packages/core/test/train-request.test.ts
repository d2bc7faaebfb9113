import { assert, describe, it } from "@effect/vitest"
import { Result } from "effect"
import type { ScoredGroup } from "../src/group.ts"
import { toTrainRequest } from "../src/train-request.ts"
import type { ScoredTrajectory } from "../src/trajectory.ts"
import { exchange, trajectory } from "./samples.ts"

const options = { key: "run:0", expectedStep: 3, config: { learningRate: 6e-4 } }
const sampled = (id: string, sampledIds: ReadonlyArray<number>, logprob = -1): ScoredTrajectory =>
  trajectory({
    id,
    exchanges: [
      exchange({
        id: `${id}-x`,
        tokens: { promptIds: [1], sampledIds, logprobs: sampledIds.map(() => logprob), prefixHash: "h" }
      })
    ]
  })
const group = (
  id: string,
  trajectories: ReadonlyArray<ScoredTrajectory>,
  dropped?: ScoredGroup["dropped"]
): ScoredGroup => ({
  id,
  trajectories,
  dropped
})
const make = (groups: ReadonlyArray<ScoredGroup>) => Result.getOrThrow(toTrainRequest(groups, options))
const refuse = (groups: ReadonlyArray<ScoredGroup>) => Result.getOrThrow(Result.flip(toTrainRequest(groups, options)))

describe("toTrainRequest", () => {
  it("sends ids, log-probabilities and hash unchanged", () => {
    const { notices, request } = make([group("a", [trajectory({ id: "a0" }), sampled("a1", [9, 2])])])
    assert.deepStrictEqual(notices, [])
    assert.deepInclude(request, { key: "run:0", expectedStep: 3, config: { learningRate: 6e-4 } })
    assert.deepStrictEqual(request.groups[0]?.trajectories[0], {
      id: "a0",
      reward: 1,
      exchanges: [
        {
          id: "x-1",
          parent: null,
          promptIds: [1, 2, 3],
          sampledIds: [7, 2],
          logprobs: [-0.5, -0.25],
          // printf '\1\0\0\0\2\0\0\0\3\0\0\0' | sha256sum
          prefixHash: "4636993d3e1da4e9d6b8f87b79e8f7c6d018580d52661950eabc3845c5897a4d",
          temperature: 1,
          policy: "toy@0",
          trained: true
        }
      ]
    })
  })

  it("with credit by turn sends what was still to come from each exchange on", () => {
    const first = sampled("a0", [9])
    const turns = [0.5, undefined, 2].map((turnReward, index) => ({
      ...exchange({ id: `t-${index}` }),
      ...(turnReward === undefined ? {} : { turnReward })
    }))
    const long = { ...sampled("a1", [8]), exchanges: turns, reward: { ...first.reward, total: 3 } }
    const returns = (credit: "trajectory" | "turn") =>
      Result.getOrThrow(
        toTrainRequest([group("a", [first, long])], { ...options, config: { credit } })
      ).request.groups.flatMap(({ trajectories }) =>
        trajectories.map(({ exchanges }) => exchanges.map(({ returnToGo }) => returnToGo))
      )
    assert.deepStrictEqual(returns("turn"), [[1], [3, 2.5, 2.5]])
    assert.deepStrictEqual(returns("trajectory"), [[undefined], [undefined, undefined, undefined]])
  })

  it("with credit by turn leaves it to the trainer whether equal rewards hide a signal", () => {
    const dropped = (credit: "trajectory" | "turn", cause: ScoredGroup["dropped"]) =>
      Result.getOrThrow(
        toTrainRequest([group("a", [sampled("a0", [9]), sampled("a1", [8])], cause)], {
          ...options,
          config: { credit }
        })
      ).request.groups[0]?.dropped
    assert.strictEqual(dropped("trajectory", "all_equal"), "all_equal")
    assert.strictEqual(dropped("turn", "all_equal"), null)
    assert.strictEqual(dropped("turn", "too_few_scored"), "too_few_scored")
  })

  it("LOOP-03: cut replies can be kept out of the loss; they stay in the baseline", () => {
    const cut = { ...sampled("a1", [9]), truncated: true }
    const trained = (maskTruncated: boolean) =>
      Result.getOrThrow(toTrainRequest([group("a", [sampled("a0", [8]), cut])], { ...options, maskTruncated }))
        .request.groups.flatMap(({ trajectories }) => trajectories)
        .map(({ exchanges, reward }) => [reward, exchanges[0]?.trained])
    assert.deepStrictEqual(trained(false), [
      [1, true],
      [1, true]
    ])
    assert.deepStrictEqual(trained(true), [
      [1, true],
      [1, false]
    ])
  })

  it("ADV-08: groups are what their ids say; a duplicate id is refused", () => {
    const sizes = make([
      group("a", [sampled("a0", [1]), sampled("a1", [2]), sampled("a2", [3])]),
      group("b", [sampled("b0", [1]), sampled("b1", [2])])
    ])
    assert.deepStrictEqual(
      sizes.request.groups.map(({ id, trajectories }) => [id, trajectories.length]),
      [
        ["a", 3],
        ["b", 2]
      ]
    )
    assert.deepInclude(refuse([group("a", [sampled("a0", [1])]), group("a", [sampled("a1", [1])])]), {
      field: "groups.id",
      value: '"a"'
    })
  })

  it("sends a group without signal with its cause", () => {
    assert.strictEqual(
      make([group("a", [sampled("a0", [1]), sampled("a1", [2])], "all_solved")]).request.groups[0]?.dropped,
      "all_solved"
    )
  })

  it("refuses an exchange without ids, naming the policy", () => {
    const { tokens: _, ...bare } = exchange({ policy: "judge" })
    const error = refuse([group("a", [trajectory({ exchanges: [bare] })])])
    assert.match(error.message, /exchange x-1\.tokens is missing.*"judge"/u)
  })

  it("refuses greedy samples, a missing log-probability and a reward that is not finite", () => {
    assert.match(
      refuse([group("a", [trajectory({ exchanges: [exchange({ temperature: 0 })] })])]).field,
      /temperature$/u
    )
    const short = exchange({ tokens: { promptIds: [1], sampledIds: [1, 2], logprobs: [-1], prefixHash: "h" } })
    assert.match(refuse([group("a", [trajectory({ exchanges: [short] })])]).field, /logprobs$/u)
    assert.match(
      refuse([group("a", [trajectory({ reward: { _tag: "Scored", total: Number.NaN, terms: {} } })])]).field,
      /reward\.total$/u
    )
  })

  it("leaves out a member without exchanges, with a notice; a lone member carries no signal", () => {
    const { notices, request } = make([
      group("a", [sampled("a0", [1]), trajectory({ id: "a1", exchanges: [], stopReason: "context_length" })])
    ])
    assert.deepStrictEqual(
      notices.map(({ code }) => code),
      ["no_exchanges"]
    )
    assert.strictEqual(request.groups[0]?.trajectories.length, 1)
    assert.strictEqual(request.groups[0]?.dropped, "too_few_scored")
  })

  it("a group with nothing to train is not sent, and said once", () => {
    const bare = (id: string) => trajectory({ id, exchanges: [] })
    const { leftOut, notices, request } = make([
      group("a", [bare("a0"), bare("a1")], "all_equal"),
      group("b", [], "too_few_scored"),
      group("c", [sampled("c0", [1]), sampled("c1", [2])])
    ])
    assert.deepStrictEqual(
      request.groups.map(({ id }) => id),
      ["c"]
    )
    assert.deepStrictEqual(leftOut, { dropped_no_exchanges: 1, dropped_no_scored: 1 })
    assert.deepStrictEqual(
      notices.map(({ code, group: of, level }) => [of, code, level]),
      [
        ["a", "no_exchanges", "warning"],
        ["b", "no_scored", "warning"]
      ]
    )
  })

  it("ADV-09: warns of an identical group; a sharp policy is told apart by the chance of it", () => {
    const four = (logprob: number) => [0, 1, 2, 3].map((member) => sampled(`a${member}`, [5, 6, 7], logprob))
    // exp(3 members x 3 tokens x -2) = 1.5e-8; exp(9 x -0.01) = 0.91
    const notice = make([group("a", four(-2))]).notices[0]
    assert.deepInclude(notice, { level: "warning", code: "identical_group", group: "a" })
    assert.include(
      notice?.message,
      "identical group: 4 of 4 members of a sampled the same ids at temperature 1 (chance 1.5e-8)"
    )
    assert.deepInclude(make([group("a", four(-0.01))]).notices[0], { level: "info", code: "identical_group" })
    assert.deepStrictEqual(make([group("a", [...four(-2), sampled("a4", [5, 6, 8])])]).notices, [])
  })
})
