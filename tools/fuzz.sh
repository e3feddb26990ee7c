#!/usr/bin/env bash
# Runs every fuzzer for N seconds on its corpus, one for each core at a time: tools/fuzz.sh SECONDS [NAME...]
# A crash leaves its input in build/fuzz/crashes/; add it to tests/corpus/NAME/ with the fix.
set -euo pipefail
cd "$(dirname "$0")/.."
crashes=build/fuzz/crashes

run_one() {
  local seconds=$1 name=$2 binary corpus scratch output runs
  binary=$(find build/asan -type f -name "$name" -perm -u+x | head -n 1)
  [ -n "$binary" ] || { echo "fuzz: $name is not built" >&2; return 1; }
  corpus=tests/corpus/${name%_fuzz}
  if [ -z "$(find "$corpus" -type f -print -quit 2>/dev/null)" ]; then
    echo "fuzz: $name has no inputs to start from: add at least one file to $corpus/" >&2
    return 1
  fi
  scratch=build/fuzz/corpus/$name
  mkdir -p "$scratch"
  if output=$("$binary" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -max_len=65536 \
      -artifact_prefix="$crashes/$name-" -print_final_stats=1 "$scratch" "$corpus" 2>&1); then
    runs=$(grep -o 'number_of_executed_units: [0-9]*' <<<"$output" | grep -o '[0-9]*$' || echo '?')
    echo "fuzz: $name ok, $runs inputs in $seconds s"
  else
    { tail -n 40 <<<"$output"; echo "fuzz: $name FAILED"; } >&2
    return 1
  fi
}

if [ "$1" = --one ]; then
  run_one "$2" "$3"
  exit
fi

seconds=$1
shift
mkdir -p "$crashes"
names=()
while IFS= read -r source; do
  name=$(basename "$source" .cc)
  if [ $# -eq 0 ] || [[ " $* " == *" $name "* ]]; then names+=("$name"); fi
done < <(git ls-files '*_fuzz.cc')
[ ${#names[@]} -gt 0 ] || { echo "fuzz: no fuzzer is named $*" >&2; exit 64; }

results=$(mktemp)
trap 'rm -f "$results"' EXIT
printf '%s\n' "${names[@]}" | xargs -P "${JOBS:-$(nproc)}" -I{} \
  sh -c '"$0" --one "$1" "$2" && echo passed >>"$3" || echo failed >>"$3"' "tools/fuzz.sh" "$seconds" {} "$results"
failed=$(grep -c failed "$results" || true)
echo "fuzz: $((${#names[@]} - failed)) passed, $failed failed"
[ "$failed" -eq 0 ]
