#!/usr/bin/env bash
# Runs every fuzzer for N seconds on its corpus: tools/fuzz.sh SECONDS [NAME...]
# A crash leaves its input in build/fuzz/crashes/; add it to tests/corpus/NAME/ with the fix.
set -euo pipefail
seconds=$1
shift
cd "$(dirname "$0")/.."
crashes=build/fuzz/crashes
mkdir -p "$crashes"
count=0
failed=0
while IFS= read -r source; do
  name=$(basename "$source" .cc)
  if [ $# -gt 0 ] && [[ " $* " != *" $name "* ]]; then continue; fi
  binary=$(find build/asan -type f -name "$name" -perm -u+x | head -n 1)
  [ -n "$binary" ] || { echo "fuzz: $name is not built" >&2; exit 1; }
  corpus=tests/corpus/${name%_fuzz}
  if [ -z "$(find "$corpus" -type f -print -quit 2>/dev/null)" ]; then
    echo "fuzz: $name has no inputs to start from: add at least one file to $corpus/" >&2
    exit 1
  fi
  scratch=build/fuzz/corpus/$name
  mkdir -p "$scratch"
  count=$((count + 1))
  if output=$("$binary" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -max_len=65536 \
      -artifact_prefix="$crashes/$name-" -print_final_stats=1 "$scratch" "$corpus" 2>&1); then
    runs=$(grep -o 'number_of_executed_units: [0-9]*' <<<"$output" | grep -o '[0-9]*$' || echo '?')
    echo "fuzz: $name ok, $runs inputs in $seconds s"
  else
    failed=$((failed + 1))
    tail -n 40 <<<"$output" >&2
    echo "fuzz: $name FAILED" >&2
  fi
done < <(git ls-files '*_fuzz.cc')
echo "fuzz: $((count - failed)) passed, $failed failed"
[ "$failed" -eq 0 ]
