/**
 * Why there is no Python environment, with what to do about it.
 */
import { Schema } from "effect"

export class PythonEnvironmentError extends Schema.TaggedError<PythonEnvironmentError>()("PythonEnvironmentError", {
  /** Where it stopped: finding Python, room on the disk, the lock, the venv, or one of the three installations. */
  step: Schema.Literals(["python", "source", "disk", "lock", "venv", "torch", "packages", "model"]),
  message: Schema.String,
  advice: Schema.String
}) {}
