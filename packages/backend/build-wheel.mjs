/**
 * `npm run build:wheel`, before a release: the wheel of the Python side and its requirement files, into `wheel/`, which the
 * package carries. Needs a Python with pip; LUDUS_PYTHON names one.
 */
import { execFileSync } from "node:child_process"
import { copyFileSync, mkdirSync, rmSync } from "node:fs"
import { fileURLToPath } from "node:url"

const at = (path) => fileURLToPath(new URL(path, import.meta.url))

rmSync(at("wheel"), { recursive: true, force: true })
mkdirSync(at("wheel/requirements"), { recursive: true })
for (const file of ["torch.txt", "embedded.txt"]) {
  copyFileSync(at(`../../backend/requirements/${file}`), at(`wheel/requirements/${file}`))
}
const pip = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", at("wheel"), at("../../backend")]
execFileSync(process.env.LUDUS_PYTHON ?? "python3", pip, { stdio: "inherit" })
