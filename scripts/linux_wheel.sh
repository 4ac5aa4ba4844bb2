#!/usr/bin/env bash
# Builds a wheel for Linux that needs only a C library, which may be old. PyPI's package ziglang links the C++ library statically and
# knows the symbols of each version of glibc and of musl.
# Usage: scripts/linux_wheel.sh VENV TOOLS TARGET PLATFORM BUILD_FOLDER WHEEL_FOLDER BUILD_TYPE
# TARGET is zig's name of the system, such as x86_64-linux-gnu.2.28; PLATFORM is its name in wheels, such as manylinux_2_28_x86_64.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(realpath "$1") target=$3 platform=$4 build=$5 wheels=$6 type=$7
mkdir -p "$wheels"
compiler=$(scripts/zig_compiler.sh "$venv" "$2" "$target")
tools=$(realpath "$2")
include=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_config_var("INCLUDEPY"))')
configuration=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_config_h_filename())')
rm -rf "$tools/python-include"
cp -r "$include" "$tools/python-include"
# Debian's pyconfig.h includes the header of one architecture from a folder outside this folder.
architecture=/usr/include/$(uname -m)-linux-gnu/$(basename "$include")/pyconfig.h
if [ -e "$architecture" ]; then configuration=$architecture; fi
cp "$configuration" "$tools/python-include/pyconfig.h"
rm -rf "$tools/wheel"
settings=()
if [[ $target == *-linux-musl* ]]; then  # Python for musl imports modules with this name
  tag=$("$venv/bin/python" -c 'import sys; print("cpython-%d%d" % sys.version_info[:2])')-${target%%-*}-linux-musl
  settings=(--config-settings=cmake.define.PYTHON_MODULE_EXTENSION=".$tag.so")
fi
"$venv/bin/pip" wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps -w "$tools/wheel" \
  --config-settings=build-dir="$build" --config-settings=cmake.build-type="$type" \
  --config-settings=cmake.define.CMAKE_TOOLCHAIN_FILE="$PWD/cmake/toolchains/linux-zig.cmake" \
  --config-settings=cmake.define.ZIG_COMPILER="$compiler" --config-settings=cmake.define.ZIG_TOOLS="$tools" \
  --config-settings=cmake.define.Python_INCLUDE_DIR="$tools/python-include" "${settings[@]}" .
if [[ $platform == musllinux_* ]]; then  # which auditwheel knows only on a system with musl
  for wheel in "$tools"/wheel/ortrain-*.whl; do
    name=$(basename "$wheel")
    mv "$wheel" "$wheels/${name%-*}-$platform.whl"
  done
else
  "$venv/bin/auditwheel" repair --plat "$platform" -w "$wheels" "$tools"/wheel/ortrain-*.whl
fi
