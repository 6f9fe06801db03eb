#!/usr/bin/env bash
# Run every test: run_tests.sh LIGHT_ENVIRONMENT ENGINE_ENVIRONMENT [pytest's own arguments].
#
# With arguments a run may select nothing in one of the two environments (pytest's exit code 5), not in both.
set -uo pipefail
cd "$(dirname "$0")/.."
light=$1 engine=$2
shift 2

readonly NOTHING_SELECTED=5

# Two files at a time: most of these tests wait for something. Tests of a file share what its fixtures start.
"$light/bin/python" -m pytest -n 2 --dist loadfile -m "not vllm and not sglang and not reference" "$@"
first=$?
# By name: other tests want peers that only the light environment has, and would count as skipped.
"$engine/bin/python" -m pytest -m vllm tests/engine tests/interop/test_reference_deployment.py "$@"
second=$?

if [ $# -gt 0 ] && [ "$first" -ne "$second" ]; then
  [ "$first" -eq "$NOTHING_SELECTED" ] && first=0
  [ "$second" -eq "$NOTHING_SELECTED" ] && second=0
fi
[ "$first" -eq 0 ] && [ "$second" -eq 0 ] || {
  echo "make test: failed (light $first, vllm $second)" >&2
  exit 1
}
