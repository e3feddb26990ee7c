#!/usr/bin/env bash
# Runs the client tests against a server of their own: tests/clients/run.sh [BINARY]
# Where there is no npm or no registry it skips with a message, but fails in CI.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=${1:-$here/../../build/release/penstock}
source "$here/../../tools/npm_packages.sh"
source "$here/serve.sh"
need_npm clients "$here" @anthropic-ai/sdk
start_server "$binary" "$(mktemp -d)" --kv-memory 256MiB
for client in openai_sdk anthropic_sdk; do
  node "$here/$client.mjs" "$url"
done
