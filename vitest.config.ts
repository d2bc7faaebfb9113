/**
 * One project per package that has tests. TypeScript sources of sibling packages are used directly (the export condition
 * `@ludus/source`), so tests need no build. Type tests (`test/**\/*.test-d.ts`) run only where a package has some.
 */
import { existsSync, readdirSync } from "node:fs"
import { defineConfig } from "vitest/config"

const conditions = ["@ludus/source"]

const folders = ["packages", "environments"].flatMap((parent) =>
  existsSync(parent) ? readdirSync(parent).map((name) => ({ name, root: `${parent}/${name}` })) : []
)

folders.push({ name: "scripts", root: "scripts" })

const files = (root: string) =>
  existsSync(`${root}/test`) ? readdirSync(`${root}/test`, { recursive: true }).map(String) : []

export default defineConfig({
  resolve: { conditions },
  ssr: { resolve: { conditions } },
  test: {
    globalSetup: ["./scripts/vitest-global-setup.ts"],
    projects: folders
      .filter(({ root }) => files(root).some((file) => /\.test(-d)?\.ts$/u.test(file)))
      .map(({ name, root }) => ({
        extends: true,
        test: {
          name,
          root,
          include: ["test/**/*.test.ts"],
          typecheck: {
            enabled: files(root).some((file) => file.endsWith(".test-d.ts")),
            include: ["test/**/*.test-d.ts"],
            tsconfig: "./tsconfig.test.json"
          }
        }
      }))
  }
})
