/**
 * An episode on the backend: the scope of conversation identity. While it is open, the model's step is leased to it and
 * its ids and caches are kept.
 */
import { randomUUID } from "node:crypto"
import { Effect, type Scope } from "effect"
import { send } from "../http/send.ts"
import type { BackendError } from "./backend.ts"
import { call, type Link, linkRequest } from "./link.ts"
import { EpisodeHandle } from "./protocol.ts"

/** Seconds after which the backend ends an episode whose client never did. */
const TTL_SECONDS = 6 * 3600

/**
 * Opens an episode and ends it when the scope closes. Its id starts with a readable form of `label` and is unique over
 * all runs: a repeated run must not find an earlier run's replies.
 */
export const openEpisode = (link: Link, label: string): Effect.Effect<EpisodeHandle, BackendError, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.suspend(() => {
      const id = `${label.replace(/[^A-Za-z0-9._]+/gu, "-").slice(0, 100)}-${randomUUID()}`
      return call(link, linkRequest(link, "POST", "/v1/ludus/episodes", { id, ttlSeconds: TTL_SECONDS }), EpisodeHandle)
    }),
    // The time to live ends what cannot be ended now.
    ({ id }) =>
      send(linkRequest(link, "DELETE", `/v1/ludus/episodes/${encodeURIComponent(id)}`)).pipe(
        Effect.interruptible,
        Effect.timeoutOption("5 seconds"),
        Effect.ignore
      ),
    { interruptible: true }
  )
