#!/usr/bin/env bash
# Builds a wheel for Linux that needs nothing but a C library, and that of an old system: PyPI's package ziglang has the names of
# each version of glibc, and musl, and links its C++ library statically.
# Usage: scripts/linux_wheel.sh VENV TOOLS TARGET PLATFORM BUILD_FOLDER WHEEL_FOLDER BUILD_TYPE
# TARGET is zig's name, as x86_64-linux-gnu.2.28; PLATFORM that of wheels, as manylinux_2_28_x86_64.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(realpath "$1") target=$3 platform=$4 build=$5 wheels=$6 type=$7
mkdir -p "$2/include" "$2/bin" "$wheels"
tools=$(realpath "$2")
zig=$(scripts/install_zig.sh "$venv" "$tools")
export ZIG_GLOBAL_CACHE_DIR=$tools/cache ZIG_LOCAL_CACHE_DIR=$tools/cache
compiler=$tools/bin/c++-$target
# Without the checks and the information for debuggers that zig adds unless it is told not to.
printf '#!/bin/sh\nexec %s c++ -target %s -fno-sanitize=undefined -g0 "$@"\n' "$zig" "$target" >"$compiler"
chmod +x "$compiler"
# Headers of this machine that do not depend on it. The folder they are in also has those of its C library.
for library in hwy flatbuffers; do
  if [ -e "/usr/include/$library" ]; then ln -sfn "/usr/include/$library" "$tools/include/$library"; fi
done
include=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_config_var("INCLUDEPY"))')
configuration=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_config_h_filename())')
rm -rf "$tools/python-include"
cp -r "$include" "$tools/python-include"
# Debian's pyconfig.h chooses between those of all architectures, which are outside of this folder.
architecture=/usr/include/$(uname -m)-linux-gnu/$(basename "$include")/pyconfig.h
if [ -e "$architecture" ]; then configuration=$architecture; fi
cp "$configuration" "$tools/python-include/pyconfig.h"
rm -rf "$tools/wheel"
"$venv/bin/pip" wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps -w "$tools/wheel" \
  --config-settings=build-dir="$build" --config-settings=cmake.build-type="$type" \
  --config-settings=cmake.define.CMAKE_TOOLCHAIN_FILE="$PWD/cmake/toolchains/linux-zig.cmake" \
  --config-settings=cmake.define.ZIG_COMPILER="$compiler" --config-settings=cmake.define.ZIG_TOOLS="$tools" \
  --config-settings=cmake.define.Python_INCLUDE_DIR="$tools/python-include" .
"$venv/bin/auditwheel" repair --plat "$platform" -w "$wheels" "$tools"/wheel/ortrain-*.whl
