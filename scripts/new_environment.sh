# Sourced by the set-up scripts: new_environment FOLDER makes a virtual environment with $PYTHON (default
# python3) unless a working one is there, and says in one line what is missing where that cannot be done.

new_environment() {
  local folder=$1 python=${PYTHON:-python3}
  if ! command -v "$python" >/dev/null; then
    echo "$python not found: install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3.12 ..." >&2
    return 1
  fi
  if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "$("$python" -V) is too old: forwardpass needs 3.11 or newer: make PYTHON=python3.12 ..." >&2
    return 1
  fi
  if "$folder/bin/python" -m pip --version >/dev/null 2>&1; then
    return 0
  fi
  if ! "$python" -m venv --clear "$folder"; then
    echo "$python cannot make virtual environments (on Debian and Ubuntu: apt-get install python3-venv)" >&2
    return 1
  fi
}

export PIP_DISABLE_PIP_VERSION_CHECK=1
