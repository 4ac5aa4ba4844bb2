#!/usr/bin/env bash
# Installs a wheel in a new virtual environment, with numpy and click alone, and replays the recorded runs; then trains from a model.
# Usage: scripts/test_wheel.sh PYTHON WHEEL FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD wheel=$(realpath "$2") venv=$3
rm -rf "$venv"
"$1" -m venv "$venv"
venv=$(realpath "$venv")
pip=("$venv/bin/pip" --quiet --disable-pip-version-check)
"${pip[@]}" install "$wheel"
cd "$venv"  # not where the package's sources are
"$venv/bin/python" "$root/tests/replay/with_package.py"
"${pip[@]}" install 'onnx>=1.16'
"$venv/bin/ortrain" demo --out "$venv/demo"
