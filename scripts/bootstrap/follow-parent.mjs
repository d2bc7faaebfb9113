/**
 * Loaded before the program (`--import`): asks it to end, as Ctrl-C's SIGTERM would, when the process that started it was
 * killed and could not pass a signal on.
 */
const parent = process.ppid

setInterval(() => {
  if (process.ppid !== parent) process.kill(process.pid, "SIGTERM")
}, 500).unref()
