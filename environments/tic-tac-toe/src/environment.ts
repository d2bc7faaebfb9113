/**
 * Tic-tac-toe against a random opponent, either side by seed.
 */
import { Reward } from "@ludus/core"
import { Action, Environment, Scenario } from "@ludus/env"
import { Schema } from "effect"
import * as Baselines from "./baselines.ts"
import { randomLegal } from "./players.ts"
import { EMPTY, free, type Mark, other, outcome, place } from "./rules.ts"

const Board = Schema.String.check(Schema.isPattern(/^[XO.]{9}$/u))

/** The board in three lines; free squares show their number. */
export const draw = (board: string): string =>
  [0, 3, 6]
    .map((row) =>
      [0, 1, 2].map((column) => (board[row + column] === "." ? row + column + 1 : board[row + column])).join("")
    )
    .join("\n")

/** Win 1, draw 0.5, loss 0. */
export const result = (board: string, mark: Mark): number => {
  const end = outcome(board)
  return end === mark ? 1 : end === "draw" ? 0.5 : 0
}

/** Results as shares, for metrics. */
export const shares = (board: string, mark: Mark) => {
  const end = outcome(board)
  return { win: Number(end === mark), draw: Number(end === "draw"), lost: Number(end === other(mark)) }
}

export class TicTacToe extends Environment.Class("tic-tac-toe", {
  description: "Tic-tac-toe against a random opponent; the side is drawn by seed, X moves first.",
  scenario: Schema.Struct({ side: Schema.Literals(["X", "O"]) }),
  state: Schema.Struct({ board: Board }),
  action: Action.tag(
    "move",
    Schema.FiniteFromString.check(Schema.isInt(), Schema.isBetween({ minimum: 1, maximum: 9 }))
  ),
  rewards: { outcome: Reward.between(0, 1), invalid: Reward.between(-0.5, 0) },
  limits: { turns: 5, tokensPerTurn: 64 },
  system:
    "You play tic-tac-toe. The board is three rows; a number is a free square. Answer with <move>n</move>, where n is the number of a free square."
})({
  scenarios: Scenario.generate((random) => ({ side: random.choice(["X", "O"] as const) })),
  start: ({ side }, { random }) => ({
    board: side === "X" ? EMPTY : place(EMPTY, randomLegal(EMPTY, "X", random), "X")
  }),
  observe: ({ board }, { side }) => `You are ${side}.\n${draw(board)}`,
  act: ({ board }, square, { side }, { random }) => {
    if (!free(board).includes(square - 1)) return Action.illegal(`Square ${square} is taken.`)
    const moved = place(board, square - 1, side)
    if (outcome(moved) !== "open") return { board: moved }
    return { board: place(moved, randomLegal(moved, other(side), random), other(side)) }
  },
  done: ({ board }) => outcome(board) !== "open",
  // an illegal reply costs more the earlier it comes, so that a group keeps its order
  score: ({ board }, { side }, { invalid, valid }) => ({
    outcome: result(board, side),
    invalid: invalid === undefined ? 0 : -0.5 + 0.1 * valid
  }),
  baselines: Baselines.ticTacToe,
  metrics: ({ board }, { side }, { turns, unparsed, illegal }) => ({
    ...shares(board, side),
    format: turns === 0 ? 1 : 1 - unparsed / turns,
    legal: turns === 0 ? 1 : 1 - (unparsed + illegal) / turns
  })
}) {}
