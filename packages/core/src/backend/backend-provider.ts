/**
 * Opens a backend for one run. A run directory is locked before its backend starts, so what a training needs from outside
 * is not a running backend but the way to one: an embedded child (`@ludus/backend`), or a URL.
 */
import { Context, type Effect, type Scope } from "effect"
import type { BackendError, BackendService } from "./backend.ts"

export class BackendProvider extends Context.Service<
  BackendProvider,
  {
    /** `stateRoot` is where an embedded backend keeps its checkpoints; a remote one keeps its own. */
    readonly open: (options: { readonly stateRoot: string }) => Effect.Effect<BackendService, BackendError, Scope.Scope>
  }
>()("@ludus/core/BackendProvider") {}
