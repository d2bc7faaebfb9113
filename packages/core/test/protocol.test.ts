import { existsSync, readFileSync } from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import { Schema } from "effect"
import * as Protocol from "../src/backend/protocol.ts"

const OpenApi = Schema.fromJsonString(
  Schema.Struct({
    components: Schema.Struct({
      schemas: Schema.Record(
        Schema.String,
        Schema.Struct({
          properties: Schema.optionalKey(Schema.Record(Schema.String, Schema.Unknown)),
          required: Schema.optionalKey(Schema.Array(Schema.String))
        })
      )
    })
  })
)

/** The document that the Python models give (`python -m ludus_backend openapi`). */
const document = new URL("../../../backend/openapi.json", import.meta.url)

/** Our Schemas by the name of the Python model. */
const requests = {
  BaseModelSpec: Protocol.BaseModelSpec,
  LoraSpec: Protocol.LoraSpec,
  RegisterModel: Protocol.RegisterModel,
  Exchange: Protocol.TrainExchange,
  TrajectoryRows: Protocol.TrainTrajectory,
  TrainGroup: Protocol.TrainGroup,
  TrainConfig: Protocol.TrainConfig,
  TrainRequest: Protocol.TrainRequest,
  ForkModel: Protocol.ForkModel,
  KeepBest: Protocol.KeepBest,
  DeleteCheckpoints: Protocol.DeleteCheckpoints,
  ExportModel: Protocol.ExportModel,
  SftConfig: Protocol.SftConfig,
  SftExample: Protocol.SftExample,
  SftRequest: Protocol.SftRequest
}
const replies = {
  Health: Protocol.Health,
  Capabilities: Protocol.Capabilities,
  ModelInfo: Protocol.ModelInfo,
  Checkpoint: Protocol.Checkpoint,
  Checkpoints: Protocol.Checkpoints,
  Episode: Protocol.EpisodeHandle,
  LudusReply: Protocol.LudusReply,
  KeptCheckpoint: Protocol.KeptCheckpoint,
  DeletedCheckpoints: Protocol.DeletedCheckpoints,
  ExportedModel: Protocol.ExportedModel,
  TrainAccepted: Protocol.TrainAccepted,
  TrainResult: Protocol.TrainResult,
  JobEvent: Protocol.JobEvent
}

describe.skipIf(!existsSync(document))("the protocol on both sides", () => {
  const models = existsSync(document)
    ? Schema.decodeSync(OpenApi)(readFileSync(document, "utf8")).components.schemas
    : {}

  for (const [name, { fields }] of Object.entries({ ...requests, ...replies })) {
    it(`${name} has the same fields`, () => {
      assert.sameMembers(Object.keys(fields), Object.keys(models[name]?.properties ?? {}))
    })
  }

  for (const [name, schema] of Object.entries(requests)) {
    it(`${name} cannot be made without what the backend requires`, () => {
      const optional = Object.entries(schema.fields).flatMap(([field, { ast }]) =>
        ast.context?.isOptional ? [field] : []
      )
      for (const field of models[name]?.required ?? []) assert.notInclude(optional, field)
    })
  }
})
