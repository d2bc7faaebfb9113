/**
 * The real backend as a child, for tests: with the tiny random model it starts in seconds. `LUDUS_PYTHON_ENV` names the
 * Python that has what the backend imports; without it these tests are skipped.
 */
import { spawn } from "node:child_process"
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { Effect, Layer } from "effect"
import { Backend } from "../src/backend/backend.ts"
import { connect } from "../src/backend/http-backend.ts"

export const python = process.env["LUDUS_PYTHON_ENV"]
if (python === undefined)
  console.log(
    "The tests with the real backend are skipped: LUDUS_PYTHON_ENV does not name a Python that has its packages."
  )

const token = "live-test-token"

/** Starts the backend in a process group of its own; the group is killed when the scope closes. */
const start = Effect.acquireRelease(
  Effect.callback<{ readonly port: number; readonly stop: () => Promise<void> }, Error>((resume) => {
    const state = mkdtempSync(join(tmpdir(), "ludus-live-"))
    const child = spawn(
      python ?? "python3",
      [
        "-m",
        "ludus_backend",
        "serve",
        "--state",
        state,
        "--instance",
        "live",
        "--token-env",
        "LUDUS_TOKEN",
        "--threads",
        "1",
        "--parent-stdin"
      ],
      {
        cwd: fileURLToPath(new URL("../../../backend", import.meta.url)),
        env: { ...process.env, LUDUS_TOKEN: token, OMP_NUM_THREADS: "1" },
        stdio: ["pipe", "pipe", "pipe"],
        detached: true
      }
    )
    let log = ""
    child.stderr.on("data", (text: Buffer) => (log += text.toString()))
    child.stdout.once("data", (line: Buffer) => {
      const stop = () =>
        new Promise<void>((done) => {
          child.once("exit", () => {
            rmSync(state, { recursive: true, force: true })
            done()
          })
          process.kill(-(child.pid ?? 0), "SIGKILL")
        })
      resume(Effect.succeed({ port: JSON.parse(line.toString()).port, stop }))
    })
    child.once("error", (error) => resume(Effect.fail(error)))
    child.once("exit", (code) => resume(Effect.fail(new Error(`The backend ended with ${code}:\n${log}`))))
  }),
  ({ stop }) => Effect.promise(stop)
)

export const layerLive = Layer.effect(
  Backend,
  Effect.flatMap(start, ({ port }) => connect({ url: `http://127.0.0.1:${port}`, token, instance: "live" }))
)
