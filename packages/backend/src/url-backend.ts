/**
 * A backend that somebody else started: on this machine or another one.
 */
import { Backend, type BackendError, connect } from "@ludus/core"
import { Layer } from "effect"

/** Connects to a running backend; `token` is its bearer token. Nothing is started, and nothing is stopped at the end. */
export const layerUrl = (options: { readonly url: string; readonly token: string }): Layer.Layer<Backend, BackendError> =>
  Layer.effect(Backend, connect(options))
