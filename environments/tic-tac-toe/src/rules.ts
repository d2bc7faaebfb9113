/**
 * The rules of tic-tac-toe, pure. A board is a text of nine characters, row by row: `X`, `O`, or `.` for a free square.
 */
export type Mark = "X" | "O"

export const EMPTY = "........."

const LINES = [
  [0, 1, 2],
  [3, 4, 5],
  [6, 7, 8],
  [0, 3, 6],
  [1, 4, 7],
  [2, 5, 8],
  [0, 4, 8],
  [2, 4, 6]
] as const

export const other = (mark: Mark): Mark => (mark === "X" ? "O" : "X")

/** Indices (0 to 8) of free squares. */
export const free = (board: string): ReadonlyArray<number> => {
  const out: Array<number> = []
  for (let i = 0; i < 9; i++) if (board[i] === ".") out.push(i)
  return out
}

export const won = (board: string, mark: Mark): boolean =>
  LINES.some((line) => line.every((square) => board[square] === mark))

/** The board after `mark` takes a free square. */
export const place = (board: string, square: number, mark: Mark): string =>
  board.slice(0, square) + mark + board.slice(square + 1)

export type Outcome = "X" | "O" | "draw" | "open"

export const outcome = (board: string): Outcome =>
  won(board, "X") ? "X" : won(board, "O") ? "O" : board.includes(".") ? "open" : "draw"
