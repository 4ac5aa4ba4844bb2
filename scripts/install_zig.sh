#!/usr/bin/env bash
# Installs PyPI's package ziglang into a folder and prints the path of its program zig. ziglang contains clang, a linker and the C
# libraries of many systems.
# Usage: scripts/install_zig.sh VENV FOLDER
set -euo pipefail
venv=$1 folder=$2
version=0.17.1
if [ ! -e "$folder/ziglang-$version" ]; then
  echo "setup: installing ziglang $version" >&2
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --upgrade --target "$folder/python" "ziglang==$version"
  touch "$folder/ziglang-$version"
fi
realpath "$folder/python/ziglang/zig"
