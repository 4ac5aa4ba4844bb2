#!/usr/bin/env bash
# For each Python: builds a wheel, installs it in a new virtual environment, replays the recorded runs, and trains from a model.
# Usage: scripts/test_pythons.sh FOLDER BUILD PYTHON...    (BUILD: the build folder of the core, which all wheels share)
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1 build=$2
shift 2
mkdir -p "$folder"
for python in "$@"; do
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  venv=$folder/$version wheels=$folder/$version-wheels
  echo "== Python $version"
  rm -rf "$venv" "$wheels"
  "$python" -m venv "$venv"
  "$venv/bin/pip" --quiet --disable-pip-version-check wheel --no-deps -w "$wheels" --config-settings=build-dir="$build" .
  scripts/test_wheel.sh "$python" "$wheels"/ortrain-*.whl "$venv"
done
