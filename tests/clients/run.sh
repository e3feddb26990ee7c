#!/usr/bin/env bash
# Runs the client tests against a server of their own: tests/clients/run.sh [BINARY]
# Where there is no npm or no registry it skips with a message, but fails in CI.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=${1:-$here/../../build/release/penstock}
skip_or_fail() {
  echo "clients: skipped, $1" >&2
  [ -z "${CI:-}" ] && exit 0
  echo "clients: in CI this must run" >&2
  exit 69
}
command -v npm >/dev/null || skip_or_fail "there is no npm here (Debian packages: nodejs npm)"
if [ ! -d "$here/node_modules/openai" ]; then
  (cd "$here" && npm ci --ignore-scripts --no-audit --no-fund --silent) ||
    skip_or_fail "npm ci failed in tests/clients"
fi
folder=$(mktemp -d)
"$binary" serve --port 0 --json --data-dir "$folder/data" --kv-memory 256MiB \
  >"$folder/ready" 2>"$folder/log" &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" || true; rm -rf "$folder"' EXIT
for _ in $(seq 300); do
  [ -s "$folder/ready" ] && break
  kill -0 "$server" 2>/dev/null || { cat "$folder/log" >&2; exit 1; }
  sleep 0.1
done
url=$(node -e 'console.log(JSON.parse(require("fs").readFileSync(process.argv[1], "utf8").split("\n")[0]).url)' "$folder/ready")
node "$here/openai_sdk.mjs" "$url"
