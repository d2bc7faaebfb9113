/**
 * Curves for a terminal: a sparkline, and a chart with an axis.
 */
const BARS = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"]

/** One character per value, scaled between the smallest and the largest. */
export const sparkline = (values: ReadonlyArray<number>): string => {
  const low = Math.min(...values)
  const span = Math.max(...values) - low || 1
  return values.map((value) => BARS[Math.min(7, Math.floor(((value - low) / span) * 8))]).join("")
}

/** A chart of `height` rows, one column per value, with the scale on the left. */
export const chart = (values: ReadonlyArray<number>, height = 10): string => {
  if (values.length === 0) return ""
  const low = Math.min(...values)
  const high = Math.max(...values)
  const span = high - low || 1
  const rowOf = (value: number) => Math.round(((value - low) / span) * (height - 1))
  const lines: Array<string> = []
  for (let row = height - 1; row >= 0; row--) {
    const scale = low + (span * row) / (height - 1)
    lines.push(
      `${scale.toFixed(2).padStart(7)} ┤${values.map((value) => (rowOf(value) === row ? " ●" : rowOf(value) > row ? " │" : "  ")).join("")}`
    )
  }
  lines.push(`${"".padStart(8)}└${"──".repeat(values.length)}`)
  return lines.join("\n")
}

/** Columns padded to their widest cell; the first one to the left, numbers to the right. */
export const table = (head: ReadonlyArray<string>, rows: ReadonlyArray<ReadonlyArray<string>>): string => {
  const all = [head, ...rows]
  const widths = head.map((_, column) => Math.max(...all.map((row) => row[column]?.length ?? 0)))
  return all
    .map((row) =>
      row
        .map((cell, column) => (column === 0 ? cell.padEnd(widths[column] ?? 0) : cell.padStart(widths[column] ?? 0)))
        .join("  ")
        .trimEnd()
    )
    .join("\n")
}
