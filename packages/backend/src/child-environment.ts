/**
 * The environment variables of our Python children: a closed list, so that keys of other programs (cloud accounts, model
 * providers, continuous integration) do not travel into a process that serves HTTP and loads downloaded models.
 */

/** What an interpreter, its caches, its numeric libraries and its TLS connections need. */
const NAMES = new Set(
  `PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR TEMP TMP
  LD_LIBRARY_PATH DYLD_LIBRARY_PATH DYLD_FALLBACK_LIBRARY_PATH
  OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS CUDA_VISIBLE_DEVICES CUDA_HOME
  SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE
  HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY http_proxy https_proxy no_proxy all_proxy`.split(/\s+/)
)
const PREFIXES = ["LC_", "XDG_", "LUDUS_", "HF_"]

/** pip settings that would install somewhere other than into the environment that is being made. */
const PIP_PLACES = new Set(["PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REQUIRE_VIRTUALENV", "PIP_PYTHON"])

export type Variables = Readonly<Record<string, string | undefined>>

/** The variables of `all` that a backend child may see. */
export const childEnvironment = (all: Variables): Record<string, string> =>
  pick(all, (name) => NAMES.has(name) || PREFIXES.some((prefix) => name.startsWith(prefix)))

/** The same and the user's pip settings (index, certificate, proxy, timeouts), for installing. */
export const pipEnvironment = (all: Variables): Record<string, string> => ({
  ...childEnvironment(all),
  ...pick(all, (name) => name.startsWith("PIP_") && !PIP_PLACES.has(name)),
  PIP_DISABLE_PIP_VERSION_CHECK: "1",
  PIP_NO_INPUT: "1"
})

const pick = (all: Variables, keep: (name: string) => boolean): Record<string, string> => {
  const kept: Record<string, string> = {}
  for (const [name, value] of Object.entries(all)) if (value !== undefined && keep(name)) kept[name] = value
  return kept
}
