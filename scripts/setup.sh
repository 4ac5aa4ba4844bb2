#!/usr/bin/env bash
# Installs what building and testing need: missing Debian packages, and a virtual environment.
# Usage: scripts/setup.sh [VENV [build]]     (default .venv; build: install only what the build and the demo need)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}
purpose=${2:-test}

packages=(build-essential ccache libflatbuffers-dev flatbuffers-compiler libhwy-dev)
# libprotobuf: tests compare the core's reader with it, and it reads fuzz inputs.
testing=(catch2 libprotobuf-dev protobuf-compiler mono-mcs mono-runtime nunit-console libnunit-framework2.6.3-cil
         clang libgnustep-base-dev libobjc-12-dev)
# For `make fuzz`, `make test-races` and `make check-clang`: Debian's default clang has no std::source_location. If a system has no such packages, they are not installed.
fuzzing=(clang-16 libclang-rt-16-dev)
# Debian's Python does not contain the module venv and the headers for extensions.
python=${PYTHON:-python3}
command -v "$python" >/dev/null || packages+=(python3)
"$python" -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
"$python" -c 'import pathlib, sysconfig; pathlib.Path(sysconfig.get_path("include"), "Python.h").stat()' 2>/dev/null ||
  packages+=(python3-dev)
requirements=(requirements-build.txt)
if [ "$purpose" = test ]; then
  packages+=("${testing[@]}")
  requirements+=(requirements-dev.txt)
fi
if command -v dpkg-query >/dev/null; then
  scripts/install_missing.sh "${packages[@]}"
  # A new machine has lists of packages only from here on.
  if [ "$purpose" = test ] && apt-cache show "${fuzzing[@]}" >/dev/null 2>&1; then scripts/install_missing.sh "${fuzzing[@]}"; fi
else
  echo "setup: this is not a Debian system; please install: ${packages[*]}" >&2
fi

if [ ! -x "$venv/bin/python" ]; then
  echo "setup: creating the virtual environment $venv"
  "$python" -m venv "$venv"
fi
for file in "${requirements[@]}"; do
  stamp=$venv/.$file
  if ! cmp -s "$file" "$stamp"; then
    echo "setup: installing the Python packages of $file"
    # Python compiles modules when they are imported; compiling all modules here would double the time of the installation.
    "$venv/bin/pip" install --quiet --no-compile --disable-pip-version-check -r "$file"
    cp "$file" "$stamp"
  fi
done
