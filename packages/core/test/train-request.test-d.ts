import { expectTypeOf, test } from "vitest"
import { type Group, type ScoredGroup, toScoredGroup } from "../src/group.ts"
import { toTrainRequest } from "../src/train-request.ts"
import type { Trajectory } from "../src/trajectory.ts"

const options = { key: "k", expectedStep: 0, config: {} }

test("only scored trajectories can reach a train request", () => {
  expectTypeOf(toTrainRequest).parameter(0).toEqualTypeOf<ReadonlyArray<ScoredGroup>>()
  const trajectories: ReadonlyArray<Trajectory> = []
  // @ts-expect-error a trajectory that may be unscored is refused by the compiler
  toTrainRequest([{ id: "g", trajectories, dropped: undefined }], options)
  const group: Group = { id: "g", scenario: "s", seat: "p", trajectories: [] }
  // @ts-expect-error and so is a group of them
  toTrainRequest([group], options)
  toTrainRequest([toScoredGroup(group)], options)
})
