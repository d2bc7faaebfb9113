/**
 * How large the download of torch will be, asked before it starts: the same version exists as a CPU build of about 200 MB and as
 * a GPU build that brings gigabytes of CUDA libraries, and the package index decides which one comes.
 */
import { execFile } from "node:child_process"
import { existsSync } from "node:fs"
import { Effect } from "effect"

const CPU = "about 200 MB to download."
const GPU = "the GPU build, about 3 GB to download."
const UNWANTED =
  "about 3 GB to download, because your package index serves the GPU build. " +
  "No NVIDIA GPU was found here: press Ctrl-C and set LUDUS_TORCH_INDEX to an index of CPU wheels to download 200 MB."

/** A sentence with the size; `args` are those of the coming `pip install`. */
export const torchSize = (
  python: string,
  args: ReadonlyArray<string>,
  env: Readonly<Record<string, string>>
): Effect.Effect<string> =>
  Effect.callback((resume) => {
    const ask = ["-I", "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--report", "-", ...args]
    const child = execFile(python, ask, { env, timeout: 60_000, maxBuffer: 16e6 }, (_error, report) => {
      const gpu = /"nvidia-|"cuda-|"triton/.test(report)
      resume(Effect.succeed(!gpu ? CPU : existsSync("/proc/driver/nvidia") ? GPU : UNWANTED))
    })
    return Effect.sync(() => child.kill("SIGKILL"))
  })
