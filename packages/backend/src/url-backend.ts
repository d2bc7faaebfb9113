/**
 * A backend that somebody else started, on this machine or another one. Nothing is started here, and nothing is stopped.
 */
import { BackendProvider, connect, type ConnectOptions, layerHttp } from "@ludus/core"
import { Layer } from "effect"

/** Connects to a running backend at `url` with its bearer `token`. */
export const layerUrl = layerHttp

/** The same backend for every run; the run's checkpoints stay with it. */
export const providerUrl = (options: ConnectOptions): Layer.Layer<BackendProvider> =>
  Layer.succeed(BackendProvider, { open: () => connect(options) })
