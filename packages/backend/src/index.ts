/**
 * The Python side of Ludus, from TypeScript: finds or makes its environment, starts it, stops it, or connects to it.
 */
export { type EmbeddedOptions, layerEmbedded, openEmbedded, providerEmbedded } from "./embedded-backend.ts"
export { type PythonEnvironment, pythonEnvironment, type PythonEnvironmentOptions } from "./python-environment.ts"
export { PythonEnvironmentError } from "./python-environment-error.ts"
export { type PythonSource } from "./python-source.ts"
export { layerUrl, providerUrl } from "./url-backend.ts"
