#!/usr/bin/env bash
# Run every test: run_tests.sh LIGHT_ENVIRONMENT ENGINE_ENVIRONMENT [pytest's own arguments].
#
# With arguments a run may select nothing in one of the two environments (pytest's exit code 5), not in both.
set -uo pipefail
cd "$(dirname "$0")/.."
light=$1 engine=$2
shift 2

readonly NOTHING_SELECTED=5

"$light/bin/python" -m pytest -m "not vllm" "$@"
first=$?
"$engine/bin/python" -m pytest -m vllm "$@"
second=$?

if [ $# -gt 0 ] && [ "$first" -ne "$second" ]; then
  [ "$first" -eq "$NOTHING_SELECTED" ] && first=0
  [ "$second" -eq "$NOTHING_SELECTED" ] && second=0
fi
[ "$first" -eq 0 ] && [ "$second" -eq 0 ] || {
  echo "make test: failed (light $first, vllm $second)" >&2
  exit 1
}
