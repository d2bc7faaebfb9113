/**
 * Baselines as policies: they read the board from the observation and answer in the environment's form, so that they play
 * under the same rules, limits and scoring as a model.
 */
import { Message, Policy, Seed } from "@ludus/core"
import { centreCorners, firstFree, heuristic, type Player, randomLegal } from "./players.ts"

/** The board in the newest user message: its last three lines of three characters, free squares as numbers. */
const boardIn = (messages: ReadonlyArray<Message.Message>): string => {
  const shown = messages.findLast((message) => message.role === "user")
  const lines = shown === undefined ? [] : Message.text(shown).split("\n")
  return lines
    .filter((line) => /^[XO1-9]{3}$/u.test(line))
    .slice(-3)
    .join("")
    .replace(/\d/gu, ".")
}

const asPolicy = (name: string, player: Player, answer: (square: number) => string): Policy.Policy =>
  Policy.scripted(name, (messages, { seed }) => {
    const shown = messages.findLast((message) => message.role === "user")
    const mark = shown !== undefined && Message.text(shown).includes("You are O") ? "O" : "X"
    return answer(player(boardIn(messages), mark, Seed.stream(seed, name)) + 1)
  })

const all = (answer: (square: number) => string): ReadonlyArray<Policy.Policy> => [
  asPolicy("random-legal", randomLegal, answer),
  asPolicy("first-free", firstFree, answer),
  asPolicy("centre-corners", centreCorners, answer),
  asPolicy("win-and-block", heuristic, answer)
]

/** Players for `TicTacToe`, weakest first. */
export const ticTacToe = all((square) => `<move>${square}</move>`)

/** Players for `TicTacToeDigits`, weakest first. */
export const digits = all(String)
