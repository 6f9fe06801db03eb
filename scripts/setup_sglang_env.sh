#!/usr/bin/env bash
# Make the environment in which a released SGLang runs on CPU: setup_sglang_env.sh FOLDER VLLM_FOLDER
#
# SGLang's own requirements are CUDA builds. Its server starts without any of them with torch_native attention,
# so it is installed without its requirements, torch and most of the rest are borrowed from the environment
# of vLLM by a .pth file, and what that lacks is named here. Made by hand for SGLang 0.5.23; for its tests only.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-.venv-sglang}
engine=${2:-.venv-vllm}
version=0.5.23
# shellcheck source=scripts/new_environment.sh
source scripts/new_environment.sh

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# pip names on stderr each requirement of SGLang's that is not met; that is meant here, unless it fails.
pip() { "$folder/bin/python" -m pip -qq "$@" 2>"$log" || { tail -n 5 "$log" >&2; return 1; }; }

echo "setting up $folder with SGLang $version for CPU (about a minute and 700 MB, once)" >&2
new_environment "$folder"
borrowed=$("$engine/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
own=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$borrowed" >"$own/borrowed_from_vllm.pth"
pip install --no-deps "sglang==$version" orjson py-spy partial_json_parser interegular dill torchvision
pip install IPython python-multipart gguf torch_memory_saver soundfile scipy modelscope xxhash openai-harmony \
  easydict distro
pip install --no-deps --editable .
touch "$folder/.ready"
