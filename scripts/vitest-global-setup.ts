/** Stops a test run on a Node that is too old, before any test fails for a reason that nobody could guess. */
export default (): void => {
  const [major = 0, minor = 0] = process.versions.node.split(".").map(Number)
  if (major > 22 || (major === 22 && minor >= 19)) return
  throw new Error(
    `These tests need Node 22.19 or newer; this is Node ${process.versions.node}. ` +
      "Run them with `npm test` (it uses the Node 24 that `npm ci` installed), or put node_modules/.bin first on the PATH."
  )
}
