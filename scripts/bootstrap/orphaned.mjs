/**
 * Notices that whoever started this process was killed and could not pass a signal on.
 *
 * npm runs a script through a shell, so there the shell's parent counts too: of a killed npm only the shell notices anything,
 * and it says nothing.
 */
import { execFile } from "node:child_process"

/** Calls back once, at most a second after the parent has gone; gives a function that stops watching. @param {() => void} callback */
export const onOrphaned = (callback) => {
  const parent = process.ppid
  let grandparent = 0
  if (process.env.npm_lifecycle_event !== undefined) {
    execFile("ps", ["-o", "ppid=", "-p", String(parent)], (_error, text) => (grandparent = Number(text) || 0))
  }
  const timer = setInterval(() => {
    if (process.ppid === parent && (grandparent <= 1 || lives(grandparent))) return
    clearInterval(timer)
    callback()
  }, 500)
  timer.unref()
  return () => clearInterval(timer)
}

/** @param {number} pid */
const lives = (pid) => {
  try {
    process.kill(pid, 0)
    return true
  } catch {
    return false
  }
}
