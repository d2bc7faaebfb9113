/**
 * Why the record of an episode is not whole: a trajectory must not be scored as if nothing had been sampled.
 */
import { Schema } from "effect"

/** A streamed reply was left by its reader, and its rest did not come. */
export class LostExchange extends Schema.TaggedError<LostExchange>()("LostExchange", {
  /** Id of the request. */
  request: Schema.String,
  cause: Schema.String
}) {
  override get message() {
    return `The streamed reply to ${this.request} was left before its end, and the rest did not come: ${this.cause}. What was sampled is not known whole, so the episode cannot be trained.`
  }
}

/** The record was asked for while a streamed reply was still coming. */
export class UnfinishedReply extends Schema.TaggedError<UnfinishedReply>()("UnfinishedReply", {
  /** Ids of the requests. */
  requests: Schema.Array(Schema.String)
}) {
  override get message() {
    return `The streamed replies to ${this.requests.join(", ")} are still coming, so not all exchanges are known. Read streams to their end, or wait with \`finished\`.`
  }
}
