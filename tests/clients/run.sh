#!/usr/bin/env bash
# Runs the client tests against a server of their own: tests/clients/run.sh [BINARY]
# Whatever the clients are answered is held to docs/protocol/schemas on its way (recorder.py).
# Where there is no npm or no registry it skips with a message, but fails in CI.
# Pinned are the newest versions that run on Debian's Node 20: 7 of `ai` and 1.5.9 of @langchain/openai
# need 22, a whole runtime more to fetch in CI.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=${1:-$here/../../build/release/penstock}
source "$here/../../tools/npm_packages.sh"
source "$here/serve.sh"
need_npm clients "$here" ws
start_server "$binary" "$(mktemp -d)" --kv-memory 256MiB
start_recorder "$here/recorder.py" 50
for client in openai_sdk anthropic_sdk ai_sdk langchain; do
  node "$here/$client.mjs" "$url"
done
stop_recorder
