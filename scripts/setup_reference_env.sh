#!/usr/bin/env bash
# Make the environment in which benchmarks compare this package with NVIDIA Dynamo's instrumented scheduler.
#
# Dynamo is needed for nothing else, and is no dependency of the package. Its 1.6.1 was made for vLLM 0.31, so
# this environment has vLLM 0.31.0 for CPU, Dynamo's two wheels without their dependencies (one of those cannot
# be installed from PyPI), and the few packages that importing its scheduler takes.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-.venv-reference}
vllm=0.31.0
dynamo=1.6.1

scripts/setup_vllm_env.sh "$folder" "$vllm"
rm "$folder/.ready" # not yet
"$folder/bin/python" -m pip -qq install --no-deps "ai_dynamo==$dynamo" "ai_dynamo_runtime==$dynamo"
"$folder/bin/python" -c 'import dynamo.vllm.instrumented_scheduler' 2>/dev/null || {
  echo "Dynamo $dynamo is installed in $folder but its scheduler cannot be imported:" >&2
  "$folder/bin/python" -c 'import dynamo.vllm.instrumented_scheduler' 2>&1 | tail -n 3 >&2
  exit 1
}
touch "$folder/.ready"
