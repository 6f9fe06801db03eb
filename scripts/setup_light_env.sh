#!/usr/bin/env bash
# Make the light environment: the package (editable), its fast compressors, and the tools of development.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-.venv}
# shellcheck source=scripts/new_environment.sh
source scripts/new_environment.sh

echo "setting up $folder (about half a minute, once)" >&2
new_environment "$folder"
"$folder/bin/python" -m pip install -qq --editable '.[fast]' --requirement requirements/dev.txt
touch "$folder/.ready"
