#!/usr/bin/env bash
# Coding agents as people run them, each through one loop "the model asks for a tool, the tool runs,
# the model answers", against a scripted engine: tests/clients/agents/run.sh [BINARY]
# Whatever they are answered is held to docs/protocol/schemas on its way (recorder.py).
# They are large (1.2 GB), so this is no part of CI; `make test-clients` runs it.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=${1:-$here/../../../build/release/penstock}
source "$here/../serve.sh"
modules=$here/node_modules
# No lock file: it would have to name the packages of every platform, and these are whole programs,
# pinned by their versions.
if [ ! -e "$modules/.installed" ]; then
  if ! (cd "$here" && npm install --ignore-scripts --no-audit --no-fund --silent); then
    echo "agents: skipped, npm install failed in $here" >&2
    exit 0
  fi
  # What their install scripts do for this platform.
  (cd "$modules/node" && node installArchSpecificPackage)
  (cd "$modules/@anthropic-ai/claude-code" && node install.cjs)
  (cd "$modules/opencode-ai" && node postinstall.mjs)
  touch "$modules/.installed"
fi
export PATH="$modules/.bin:$PATH"

folder=$(mktemp -d)
start_server "$binary" "$folder" --access-log "$folder/access.log" --engine scripted --script "$here/script.json" --kv-memory 512MiB
start_recorder "$here/../recorder.py" 20
# Codex takes no home inside the folder for temporary files.
homes=$here/node_modules/.homes
rm -rf "$homes"

failed=0
# drive NAME COMMAND...: runs it in a home and a folder of its own, and looks at what it says.
drive() {
  local name=$1
  shift
  mkdir -p "$homes/$name/project"
  local said
  if said=$(cd "$homes/$name/project" && HOME=$homes/$name timeout 120 "$@" </dev/null 2>&1) &&
     grep -q "The tool printed penstock-42." <<<"$said"; then
    echo "agents: $name ran the tool and answered"
  else
    printf 'agents: %s failed; it said:\n%s\n' "$name" "$said" >&2
    failed=1
  fi
}

drive claude-code env ANTHROPIC_BASE_URL="$url" ANTHROPIC_API_KEY=none \
  CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 DISABLE_AUTOUPDATER=1 \
  claude -p "run the marker command" --model nano --allowedTools Bash

mkdir -p "$homes/opencode/project"
cat >"$homes/opencode/project/opencode.json" <<JSON
{"provider": {"penstock": {"npm": "@ai-sdk/openai-compatible", "name": "Penstock",
   "options": {"baseURL": "$url/v1", "apiKey": "none"},
   "models": {"nano": {"name": "nano", "limit": {"context": 200000, "output": 4096}}}}},
 "permission": {"bash": "allow"}, "autoupdate": false, "share": "disabled"}
JSON
drive opencode opencode run --model penstock/nano "run the marker command"

mkdir -p "$homes/codex/.codex"
cat >"$homes/codex/.codex/config.toml" <<TOML
model = "nano"
model_provider = "penstock"
[model_providers.penstock]
name = "Penstock"
base_url = "$url/v1"
wire_api = "responses"
env_key = "PENSTOCK_API_KEY"
TOML
drive codex env PENSTOCK_API_KEY=none codex exec --skip-git-repo-check \
  --dangerously-bypass-approvals-and-sandbox "run the marker command"

# The same over a WebSocket, which Codex speaks with providers that are said to have one.
mkdir -p "$homes/codex-websocket/.codex"
{ cat "$homes/codex/.codex/config.toml"; echo "supports_websockets = true"; } >"$homes/codex-websocket/.codex/config.toml"
drive codex-websocket env PENSTOCK_API_KEY=none codex exec --skip-git-repo-check \
  --dangerously-bypass-approvals-and-sandbox "run the marker command"
grep -q '"status":101' "$folder/access.log" || { echo "agents: codex opened no WebSocket" >&2; failed=1; }

stop_recorder || failed=1
exit "$failed"
