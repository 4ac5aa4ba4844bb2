#!/usr/bin/env bash
# Installs a wheel for Linux on arm64 into a folder and tests the wheel in an emulator, with Debian's Python for arm64: recorded runs, a
# case of every operator, and training on the digits.
# Usage: scripts/test_arm64_wheel.sh PYTHON WHEEL ARM64_PYTHON FOLDER
set -euo pipefail
python=$1 wheel=$2 arm64_python=$3 folder=$4
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
mkdir -p "$folder"
install() {
  "$python" -m pip install --quiet --disable-pip-version-check --target "$folder/site" --upgrade --only-binary=:all: \
    --python-version "$version" --implementation cp --platform linux_aarch64 --platform manylinux2014_aarch64 \
    --platform manylinux_2_27_aarch64 --platform manylinux_2_28_aarch64 "$@"
}
# The versions are those of this machine, so that they can read the files of cases that this machine wrote.
packages=$("$python" -c 'import importlib.metadata as m
for name in ("numpy", "onnx", "ml_dtypes", "click", "pyyaml"): print(f"{name}=={m.version(name)}")')
if [ "$(cat "$folder/packages" 2>/dev/null)" != "$packages" ]; then
  rm -rf "$folder/site"
  # shellcheck disable=SC2086
  install $packages
  echo "$packages" >"$folder/packages"
fi
rm -rf "$folder"/site/ortrain*
install --no-deps "$wheel"

emulated() {
  PYTHONPATH=$folder/site qemu-aarch64 -L "$arm64_python" "$arm64_python/usr/bin/python$version" "$@"
}
emulated -c 'import platform, ortrain; print(f"test-arm64: Python {platform.python_version()} on {platform.machine()}, {ortrain.__file__}")'
emulated tests/replay/with_package.py
"$python" -c 'from tests.node_cases import node_cases; node_cases()'  # writes the file that is read below
emulated -m tests.replay.operators
"$python" -m tests.replay.digits save "$folder/digits.npz"
emulated -m tests.replay.digits train "$folder/digits.npz" "$folder/digits"
"$python" -m tests.replay.digits check "$folder/digits.npz" "$folder/digits"
