#!/usr/bin/env bash
# Installs what building and testing need: missing Debian packages, and a virtual environment.
# Usage: scripts/setup.sh [VENV]     (default .venv)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}

packages=(build-essential ccache libprotobuf-dev protobuf-compiler libflatbuffers-dev flatbuffers-compiler
          libhwy-dev catch2 patchelf
          mono-mcs mono-runtime nunit-console libnunit-framework2.6.3-cil
          clang libgnustep-base-dev libobjc-12-dev)
# For `make fuzz`, `make test-races` and `make check-clang`: Debian's default clang has no std::source_location. Systems without these packages do without.
fuzzing=(clang-16 libclang-rt-16-dev libomp-16-dev)
# Debian's Python comes without the venv module and without the headers for extensions.
python=${PYTHON:-python3}
command -v "$python" >/dev/null || packages+=(python3)
"$python" -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
"$python" -c 'import pathlib, sysconfig; pathlib.Path(sysconfig.get_path("include"), "Python.h").stat()' 2>/dev/null ||
  packages+=(python3-dev)
install_missing() {
  local missing=()
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    echo "setup: installing ${missing[*]}"
    scripts/apt_install.sh "${missing[@]}"
  fi
}
if command -v dpkg-query >/dev/null; then
  install_missing "${packages[@]}"
  # Only now are there lists of packages on a new machine.
  if apt-cache show "${fuzzing[@]}" >/dev/null 2>&1; then install_missing "${fuzzing[@]}"; fi
else
  echo "setup: this is not a Debian system; please install: ${packages[*]}" >&2
fi

if [ ! -x "$venv/bin/python" ]; then
  echo "setup: creating the virtual environment $venv"
  "$python" -m venv "$venv"
fi
stamp=$venv/.requirements
if ! cmp -s requirements-dev.txt "$stamp"; then
  echo "setup: installing the Python packages of requirements-dev.txt"
  "$venv/bin/pip" install --quiet --disable-pip-version-check -r requirements-dev.txt
  cp requirements-dev.txt "$stamp"
fi
