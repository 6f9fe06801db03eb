#!/usr/bin/env bash
# Make an environment for a vLLM release that has no build for CPU: setup_vllm_wheel_env.sh FOLDER VERSION BASE
#
# The release's own wheel goes beside the dependencies of BASE, an environment with a release for CPU. Its kernels
# want CUDA and another torch, so no engine starts here; its Python code, the scheduler too, imports and runs.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1 version=$2 base=$3
# shellcheck source=scripts/new_environment.sh
source scripts/new_environment.sh

site_packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

echo "setting up $folder with the CUDA wheel of vLLM $version, dependencies of $base (0.9 GB, once)" >&2
new_environment "$folder"
site_packages "$base" >"$(site_packages "$folder")/base.pth" # looked into after the folder's own
"$folder/bin/python" -m pip -qq install --no-deps "vllm==$version"
"$folder/bin/python" -m pip -qq install --editable '.[fast]' --requirement requirements/test.txt
touch "$folder/.ready"
