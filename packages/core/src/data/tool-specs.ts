/** Tool descriptions as fine-tuning files write them, in OpenAI's form. */
import type { ToolSpec } from "../backend/protocol.ts"
import { FlawedRecord } from "./data-error.ts"
import { type Count, fieldsAt, listAt, textAt } from "./record-fields.ts"

const KNOWN = new Set(["name", "description", "parameters", "strict"])

/** Takes `{ type, function }`, or the function by itself. Other keys are counted and left out. */
export const toolSpecs = (value: unknown, field: string, count: Count): ReadonlyArray<ToolSpec> =>
  listAt(value, field).map((item, index) => {
    const place = `${field}[${index}]`
    const outer = fieldsAt(item, place)
    const wrapped = outer["function"] !== undefined
    const described = wrapped ? fieldsAt(outer["function"], `${place}.function`) : outer
    const at = wrapped ? `${place}.function` : place
    for (const key of Object.keys(described)) {
      if (!KNOWN.has(key) && !(key === "type" && !wrapped))
        count(`ignored: ${wrapped ? "function." : ""}${key} of a tool`)
    }
    const { description, name, parameters, strict } = described
    if (textAt(name, `${at}.name`) === "") throw new FlawedRecord(`${at}.name`, name, "a name")
    return {
      type: "function" as const,
      function: {
        name: textAt(name, `${at}.name`),
        ...(description === undefined || description === null
          ? {}
          : { description: textAt(description, `${at}.description`) }),
        ...(parameters === undefined || parameters === null
          ? {}
          : { parameters: fieldsAt(parameters, `${at}.parameters`) }),
        ...(typeof strict === "boolean" ? { strict } : {})
      }
    }
  })
