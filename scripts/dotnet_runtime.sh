#!/usr/bin/env bash
# Unpacks the runtime of .NET from PyPI's package dotnetcore2 into a folder, and prints the path of its program.
# Usage: scripts/dotnet_runtime.sh VENV FOLDER PLATFORM
# PLATFORM is pip's name of the system: win_amd64 or manylinux1_x86_64.
set -euo pipefail
venv=$1 folder=$2 platform=$3
version=3.1.23
stamp=$folder/dotnetcore2-$version-$platform
if [ ! -e "$stamp" ]; then
  echo "setup: unpacking .NET from dotnetcore2 $version for $platform" >&2
  rm -rf "$folder" && mkdir -p "$folder"
  "$venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --platform "$platform" --dest "$folder" \
    "dotnetcore2==$version"
  "$venv/bin/python" -m zipfile -e "$folder"/*.whl "$folder"
  rm "$folder"/*.whl
  chmod +x "$folder"/dotnetcore2/bin/dotnet*
  touch "$stamp"
fi
realpath "$(find "$folder/dotnetcore2/bin" -maxdepth 1 -name 'dotnet*' -type f)"
