import { Seed } from "@ludus/core"
import { Players, Rules } from "@ludus/tic-tac-toe"
import { assert, describe, it } from "@effect/vitest"

/** Counts of all games of tic-tac-toe, X first, played to the end (known since long: OEIS A061526-A061529). */
const countGames = () => {
  const ends = { X: 0, O: 0, draw: 0 }
  const play = (board: string, mark: Rules.Mark): void => {
    const end = Rules.outcome(board)
    if (end !== "open") {
      ends[end]++
      return
    }
    for (const square of Rules.free(board)) play(Rules.place(board, square, mark), Rules.other(mark))
  }
  play(Rules.EMPTY, "X")
  return ends
}

describe("the rules", () => {
  it("give the known numbers of games: 131,184 won by X, 77,904 by O, 46,080 drawn", () => {
    assert.deepStrictEqual(countGames(), { X: 131_184, O: 77_904, draw: 46_080 })
  })
})

describe("the players", () => {
  const random = Seed.stream(1)
  it("take a win before a block, and a block before the centre", () => {
    assert.strictEqual(Players.heuristic("XX.OO....", "X", random), 2)
    assert.strictEqual(Players.heuristic("X..OO....", "X", random), 5)
    assert.strictEqual(Players.heuristic("X........", "O", random), 4)
  })
  it("only ever take free squares", () => {
    for (const player of [Players.randomLegal, Players.firstFree, Players.centreCorners, Players.heuristic]) {
      for (let game = 0; game < 200; game++) {
        let board: string = Rules.EMPTY
        let mark: Rules.Mark = "X"
        while (Rules.outcome(board) === "open") {
          const square = player(board, mark, random)
          assert.strictEqual(board[square], ".")
          board = Rules.place(board, square, mark)
          mark = Rules.other(mark)
        }
      }
    }
  })
})
