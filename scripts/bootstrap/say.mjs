/**
 * What the bootstrap tells the user: plain lines on the standard error, so that the standard output belongs to the command.
 */

/** @param {string} line */
export const say = (line) => void process.stderr.write(`${line}\n`)

/** An end with advice and without a stack: the user's machine lacks something, the program has no fault. */
export class Advice extends Error {}

/** Runs a script's body; an `Advice` becomes its text and exit code 1. @param {() => Promise<number>} body */
export const main = async (body) => {
  try {
    process.exitCode = await body()
  } catch (error) {
    if (!(error instanceof Advice)) throw error
    say(error.message)
    process.exitCode = 1
  }
}

/** `"4 s"`, from a time in milliseconds until now. @param {number} begin */
export const since = (begin) => `${Math.round((Date.now() - begin) / 1000)} s`
