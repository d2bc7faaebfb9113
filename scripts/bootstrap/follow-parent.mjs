/**
 * Loaded before the program (`--import`): asks it to end in good order when the process that started it was killed.
 */
import { onOrphaned } from "./orphaned.mjs"

onOrphaned(() => process.kill(process.pid, "SIGTERM"))
