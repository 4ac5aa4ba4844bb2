#!/usr/bin/env bash
# Installs a wheel in a new virtual environment that contains only numpy and click, replays the recorded runs, and runs `ortrain demo`.
# Usage: scripts/test_wheel.sh PYTHON WHEEL FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD wheel=$(realpath "$2") venv=$3
rm -rf "$venv"
"$1" -m venv "$venv"
venv=$(realpath "$venv")
pip=("$venv/bin/pip" --quiet --disable-pip-version-check)
"${pip[@]}" install "$wheel"
cd "$venv"  # not in the folder with the package's sources
"$venv/bin/python" "$root/tests/replay/with_package.py"
"$venv/bin/ortrain" demo --out "$venv/demo"
