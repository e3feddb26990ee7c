#!/usr/bin/env bash
# Configures and builds one preset: tools/build.sh PRESET [TARGET...]
set -euo pipefail
preset=$1
shift
jobs=${JOBS:-$(nproc)}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Precompiled headers: a build from nothing takes two thirds of the time.
if ! cmake --preset "$preset" -DPENSTOCK_PRECOMPILED="${PENSTOCK_PRECOMPILED:-ON}" >"$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
exec cmake --build "build/$preset" -j "$jobs" ${1:+--target "$@"}
