import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import { HttpFailure } from "../src/http/http-failure.ts"
import { defaultRetry, retryAfterMillis, waitMillis, withRetries } from "../src/http/retry.ts"

const failure = (status: number, headers: Record<string, string> = {}) =>
  new HttpFailure({ message: "no", status, headers })
const now = Date.parse("Tue, 03 Mar 2026 10:00:00 GMT")

describe("retries", () => {
  it("EP-01: reads seconds, milliseconds, and an HTTP date", () => {
    assert.strictEqual(retryAfterMillis({ "retry-after": "2" }, now), 2000)
    assert.strictEqual(retryAfterMillis({ "retry-after-ms": "250" }, now), 250)
    assert.strictEqual(retryAfterMillis({ "retry-after": "Tue, 03 Mar 2026 10:00:05 GMT" }, now), 5000)
    assert.strictEqual(retryAfterMillis({ "retry-after": "soon" }, now), undefined)
    assert.strictEqual(retryAfterMillis({}, now), undefined)
  })

  it.effect("EP-01: obeys up to the cap; 0 and the past mean our own back-off", () =>
    Effect.gen(function* () {
      assert.strictEqual(yield* waitMillis(failure(429, { "retry-after": "2" }), 1, defaultRetry), 2000)
      assert.strictEqual(yield* waitMillis(failure(429, { "retry-after": "3600" }), 1, defaultRetry), 60_000)
      assert.strictEqual(
        yield* waitMillis(failure(429, { "retry-after": "3600" }), 1, { ...defaultRetry, beyondCap: "fail" }),
        undefined
      )
      for (const header of ["0", "Mon, 03 Mar 1969 10:00:05 GMT"]) {
        const wait = yield* waitMillis(failure(429, { "retry-after": header }), 3, defaultRetry)
        assert.isAtLeast(wait ?? 0, 500)
        assert.isAtMost(wait ?? 0, 1000)
      }
    })
  )

  it.effect("EP-01: fails at once where the server asks for more than the cap and the policy says so", () =>
    Effect.gen(function* () {
      const attempt = Effect.fail(failure(429, { "retry-after": "3600" }))
      const { attempts, failure: last } = yield* Effect.flip(
        withRetries(attempt, { ...defaultRetry, beyondCap: "fail" })
      )
      assert.strictEqual(attempts, 1)
      assert.include(last.message, "3600")
    })
  )

  it.live("EP-02: repeats only what a repeat may mend, a bounded number of times", () =>
    Effect.gen(function* () {
      const quick = { ...defaultRetry, baseMillis: 1, attempts: 4 }
      for (const status of [408, 429, 500, 502, 503, 504]) {
        assert.strictEqual((yield* Effect.flip(withRetries(Effect.fail(failure(status)), quick))).attempts, 4)
      }
      for (const status of [400, 401, 403, 404, 409, 422, 501]) {
        assert.strictEqual((yield* Effect.flip(withRetries(Effect.fail(failure(status)), quick))).attempts, 1)
      }
    })
  )
})
