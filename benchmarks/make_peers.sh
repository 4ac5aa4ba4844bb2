#!/bin/sh
# Creates the virtual environments of the peers: make_peers.sh [FOLDER], by default .venv-peers in the checkout.
# Running the script again is quick, because it does not change complete environments.
set -eu
folder=${1:-$(cd "$(dirname "$0")/.." && pwd)/.venv-peers}
python=${PYTHON:-python3}

# onnxruntime-training 1.19.2 also needs protobuf and numpy of versions from the time of its release.
if ! "$python" -c 'import sys; sys.exit(sys.version_info >= (3, 12))'; then
    echo "$0: onnxruntime-training 1.19.2 has no wheel for $("$python" -V); set PYTHON to Python 3.10 or 3.11" >&2
    exit 1
fi

environment() {  # name, then requirements
    venv=$folder/$1
    shift
    if [ "$(cat "$venv/installed" 2>/dev/null)" = "$*" ]; then
        echo "$venv: ready"
        return
    fi
    echo "$venv: installing $*"
    mkdir -p "$folder"
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
    echo "$*" >"$venv/installed"
}

# The first environment also contains torch: torch exports the models, and onnxruntime.training imports it.
environment ort onnxruntime-training-cpu==1.19.2 onnx==1.16.2 "protobuf<5" "numpy<2.4" torch==2.13.0
environment torch torch==2.13.0 numpy
environment jax 'jax==0.10.*' numpy
