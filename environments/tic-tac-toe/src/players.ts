/**
 * Players that need no model: opponents and baselines. Each picks a free square of a board that is still open.
 */
import type { Seed } from "@ludus/core"
import { free, type Mark, other, place, won } from "./rules.ts"

export type Player = (board: string, mark: Mark, random: Seed.RandomStream) => number

/** Any free square with equal chance. */
export const randomLegal: Player = (board, _mark, random) => random.choice(free(board))

const inOrder =
  (order: ReadonlyArray<number>): Player =>
  (board) =>
    order.find((square) => board[square] === ".") as number

/** A constant order: always the first free square. It wins often against a random opponent and looks at nothing. */
export const firstFree: Player = inOrder([0, 1, 2, 3, 4, 5, 6, 7, 8])

/** A constant order: centre, corners, edges. */
export const centreCorners: Player = inOrder([4, 0, 2, 6, 8, 1, 3, 5, 7])

/** Takes a win, else blocks one, else centre and corners. */
export const heuristic: Player = (board, mark, random) =>
  free(board).find((square) => won(place(board, square, mark), mark)) ??
  free(board).find((square) => won(place(board, square, other(mark)), other(mark))) ??
  centreCorners(board, mark, random)
