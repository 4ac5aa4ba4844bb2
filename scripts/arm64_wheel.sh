#!/usr/bin/env bash
# Cross-compiles a wheel for Linux on arm64. ARM64_PYTHON is the folder that contains the headers of Debian's Python for arm64.
# Usage: scripts/arm64_wheel.sh PYTHON BUILD_FOLDER ARM64_PYTHON WHEEL_FOLDER BUILD_TYPE [CMAKE_DEFINITION...]
set -euo pipefail
python=$1 build=$2 arm64_python=$3 wheels=$4 type=$5
shift 5
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
include=$arm64_python/usr/include/python$version
if [ ! -e "$include/Python.h" ]; then
  echo "arm64_wheel: $python is Python $version; expected the headers of this version in $arm64_python, found none" >&2
  exit 1
fi
# The header in $include includes the header of one architecture from a folder outside $include.
cp "$arm64_python/usr/include/aarch64-linux-gnu/python$version/pyconfig.h" "$include/"
tag=cpython-${version/./}-aarch64-linux-gnu
settings=("build-dir=$build" "cmake.build-type=$type" "build.targets=_ortrain;alias"
          "cmake.define.CMAKE_TOOLCHAIN_FILE=$PWD/cmake/toolchains/linux-arm64.cmake"
          "cmake.define.Python_INCLUDE_DIR=$include" "cmake.define.PYTHON_MODULE_EXTENSION=.$tag.so")
for definition in "$@"; do settings+=("cmake.define.$definition"); done
export SETUPTOOLS_EXT_SUFFIX=.$tag.so _PYTHON_HOST_PLATFORM=linux-aarch64
rm -f "$wheels"/ortrain-*_aarch64.whl
"$python" -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps -w "$wheels" \
  "${settings[@]/#/--config-settings=}" .
