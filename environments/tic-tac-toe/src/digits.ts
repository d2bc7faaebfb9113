/**
 * The small model's exercise: one digit is a whole move, so that a 135M-parameter model learns on a CPU in minutes. Always
 * X; who starts alternates by seed.
 */
import { Reward } from "@ludus/core"
import { Action, Environment, Scenario } from "@ludus/env"
import { Schema } from "effect"
import * as Baselines from "./baselines.ts"
import { draw, result, shares, TicTacToe } from "./environment.ts"
import { randomLegal } from "./players.ts"
import { EMPTY, free, outcome, place } from "./rules.ts"

export class TicTacToeDigits extends Environment.Class("tic-tac-toe-digits", {
  description: "Tic-tac-toe for very small models: answer with a single digit; always X against a random O.",
  scenario: Schema.Struct({ first: Schema.Boolean }),
  state: TicTacToe.spec.state,
  action: Action.pattern(/^\s*([1-9])(?!\d)/u, Schema.FiniteFromString, { fixedLength: true }),
  rewards: { outcome: Reward.between(0, 1), invalid: Reward.between(-0.7, 0) },
  limits: { turns: 5, tokensPerTurn: 1 },
  system: "You play tic-tac-toe as X. Numbers are free squares. Answer with a single digit, nothing else."
})({
  scenarios: Scenario.generate((_random, index) => ({ first: index % 2 === 0 })),
  start: ({ first }, { random }) => ({ board: first ? EMPTY : place(EMPTY, randomLegal(EMPTY, "O", random), "O") }),
  observe: ({ board }) => `${draw(board)}\nPick one digit.`,
  act: ({ board }, square, _scenario, { random }) => {
    if (!free(board).includes(square - 1)) return Action.illegal(`Square ${square} is taken.`)
    const moved = place(board, square - 1, "X")
    if (outcome(moved) !== "open") return { board: moved }
    return { board: place(moved, randomLegal(moved, "O", random), "O") }
  },
  done: ({ board }) => outcome(board) !== "open",
  // an invalid reply: -0.5, better by 0.1 for each legal move before it, worse by 0.2 where it holds no digit
  score: ({ board }, _scenario, { invalid, valid }) => ({
    outcome: invalid === undefined ? result(board, "X") : 0,
    invalid: invalid === undefined ? 0 : -0.5 + 0.1 * valid - (invalid === "unparsed" ? 0.2 : 0)
  }),
  baselines: Baselines.digits,
  metrics: ({ board }, _scenario, { turns, unparsed, illegal }) => ({
    ...shares(board, "X"),
    format: turns === 0 ? 1 : 1 - unparsed / turns,
    legal: turns === 0 ? 1 : 1 - (unparsed + illegal) / turns
  })
}) {}
