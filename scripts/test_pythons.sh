#!/usr/bin/env bash
# For each Python: builds a wheel, installs it in a new virtual environment, replays the recorded runs, and trains from a model.
# Usage: scripts/test_pythons.sh FOLDER BUILD PYTHON...    (BUILD: where the core is built, which all share)
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD folder=$1 build=$2
shift 2
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
for python in "$@"; do
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  venv=$folder/$version wheels=$folder/$version/wheels
  echo "== Python $version"
  rm -rf "$venv"
  "$python" -m venv "$venv"
  pip=("$venv/bin/pip" --quiet --disable-pip-version-check)
  "${pip[@]}" wheel --no-deps -w "$wheels" --config-settings=build-dir="$build" .
  "${pip[@]}" install "$wheels"/ortrain-*.whl  # as a device has it, with numpy and click alone
  cd "$folder"  # not where the package's sources are
  "$venv/bin/python" "$root/tests/replay/with_package.py"
  "${pip[@]}" install 'onnx>=1.16'
  "$venv/bin/ortrain" demo --out "$venv/demo"
  cd "$root"
done
