#!/usr/bin/env bash
# Make the light environment: the package (editable), its fast compressors, and the tools of development.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-.venv}
# shellcheck source=scripts/new_environment.sh
source scripts/new_environment.sh

echo "setting up $folder (about half a minute, once)" >&2
new_environment "$folder"
"$folder/bin/python" -m pip install -qq --editable '.[fast]' \
  --requirement requirements/dev.txt --requirement requirements/peers.txt
# NVIDIA Dynamo's runtime, the other side of every interface in tests/interop; without its dependencies, for
# none of them is needed here.
"$folder/bin/python" -m pip install -qq --no-deps ai-dynamo-runtime==1.6.1
touch "$folder/.ready"
