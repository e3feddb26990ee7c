#!/usr/bin/env bash
# Holds our grammars against the public JSON-Schema-Test-Suite: run_suite.sh [BUILD_DIR]
#
# Installs the npm package when it is missing, and runs the suite's test of BUILD_DIR's (build/release)
# core_grammar_test: no false accept, no false reject; what is refused is printed by its word, with the coverage.
# Where there is no npm or no registry it skips with a message, but fails in CI.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${1:-build/release}
cd "$root"
test_binary=$build/src/core/grammar/core_grammar_test
[ -x "$test_binary" ] || { echo "schema suite: $test_binary is not built" >&2; exit 66; }
source "$here/../npm_packages.sh"
need_npm "schema suite" "$here" json-schema-test-suite
cases=$build/schema_suite.json
node "$here/cases.mjs" "$here" >"$cases"
PENSTOCK_SCHEMA_CASES=$cases "$test_binary" --no-version --test-case="the public suite of JSON Schema*"
