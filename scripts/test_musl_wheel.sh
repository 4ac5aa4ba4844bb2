#!/usr/bin/env bash
# Tests a wheel for Linux with musl with the Python of scripts/musl_python.sh: replays the recorded runs, and trains and evaluates with the
# command line. The commands do not need onnx, which has no wheels for musl.
# Usage: scripts/test_musl_wheel.sh PYTHON WHEEL FOLDER MUSL_PYTHON
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD python=$(realpath -s "$1") wheel=$(realpath "$2") musl=$(realpath "$4")
rm -rf "$3"
mkdir -p "$3"
cd "$3"  # not in the folder with the package's sources
"$python" -m zipfile -e "$wheel" site
run() { PYTHONPATH=$PWD/site "$musl/python" "$@"; }
run -c 'import platform, ortrain; print(f"wheel: Python {platform.python_version()}, {ortrain.__file__}")'
run "$root/tests/replay/with_package.py"
run -m ortrain doctor
run -m ortrain demo --out demo
run -m ortrain train demo/artifacts --data demo/train.npz --validation demo/test.npz --epochs 3
run -m ortrain evaluate demo/artifacts --data demo/test.npz --metric accuracy
