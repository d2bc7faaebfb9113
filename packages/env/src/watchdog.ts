/**
 * A watchdog for code that blocks the event loop. No timer of this thread can fire while user code computes, so a worker
 * thread watches a heartbeat and names the episode, the turn and the function that holds the loop.
 *
 * It writes to standard error itself. After `abortSeconds` it ends the process: the journal is durable, and a run that
 * hangs for ever only burns money.
 */
import { Worker } from "node:worker_threads"

export interface Watchdog {
  /** Names what the main thread is about to do; cheap enough for every call of user code. */
  readonly enter: (label: string) => void
  readonly stop: () => void
}

export interface WatchdogOptions {
  /** First report after this many seconds without a heartbeat; repeated at the same distance. Default 10. */
  readonly reportSeconds?: number
  /** The process is ended after this many. Default 300. */
  readonly abortSeconds?: number
}

const LABEL_BYTES = 512

/** Runs in the worker: plain JavaScript, because it is started from a string and needs no file of its own. */
const watch = `
const { workerData } = require("node:worker_threads")
const { writeSync } = require("node:fs")
const beat = new Int32Array(workerData.shared, 0, 2)
const text = new Uint8Array(workerData.shared, 8)
const idle = new Int32Array(new SharedArrayBuffer(4))
const label = () => Buffer.from(text.slice(0, Atomics.load(beat, 1))).toString("utf8")
let last = Atomics.load(beat, 0), since = Date.now(), reported = 0
for (;;) {
  Atomics.wait(idle, 0, 0, 250)
  const now = Atomics.load(beat, 0)
  if (now < 0) break
  if (now !== last) { last = now; since = Date.now(); reported = 0; continue }
  const seconds = (Date.now() - since) / 1000
  if (seconds >= workerData.abortSeconds) {
    writeSync(2, "ludus: the event loop was blocked for " + Math.round(seconds) + " s by " + label() + "; ending the process. Resume the run by its name after mending that code.\\n")
    process.kill(process.pid, "SIGKILL")
  }
  if (seconds >= workerData.reportSeconds * (reported + 1)) {
    reported++
    writeSync(2, "ludus: the event loop has been blocked for " + Math.round(seconds) + " s by " + label() + ". Nothing else can run: this code computes without end or waits synchronously.\\n")
  }
}
`

/** Starts the watchdog thread. Stop it when the rollouts end. */
export const start = (options?: WatchdogOptions): Watchdog => {
  const shared = new SharedArrayBuffer(8 + LABEL_BYTES)
  const beat = new Int32Array(shared, 0, 2)
  const text = new Uint8Array(shared, 8)
  const encoder = new TextEncoder()
  const heartbeat = setInterval(() => Atomics.add(beat, 0, 1), 200)
  heartbeat.unref()
  const worker = new Worker(watch, {
    eval: true,
    workerData: { shared, reportSeconds: options?.reportSeconds ?? 10, abortSeconds: options?.abortSeconds ?? 300 }
  })
  worker.unref()
  return {
    enter: (label) => {
      Atomics.store(beat, 1, encoder.encodeInto(label, text).written)
    },
    stop: () => {
      clearInterval(heartbeat)
      Atomics.store(beat, 0, -1)
    }
  }
}
