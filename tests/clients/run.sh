#!/usr/bin/env bash
# Runs the client tests against a server of their own: tests/clients/run.sh [BINARY]
# Where there is no npm or no registry it skips with a message, but fails in CI.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=${1:-$here/../../build/release/penstock}
source "$here/../../tools/npm_packages.sh"
need_npm clients "$here" @anthropic-ai/sdk
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
for client in openai_sdk anthropic_sdk; do
  node "$here/$client.mjs" "$url"
done
