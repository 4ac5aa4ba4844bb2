#!/usr/bin/env bash
# Cross-compiles a wheel for Windows on x86-64. WINDOWS_PYTHON is the folder of windows_python.sh.
# Usage: scripts/windows_wheel.sh VENV TOOLS WINDOWS_PYTHON BUILD_FOLDER WHEEL_FOLDER BUILD_TYPE
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1 windows_python=$(realpath "$3") build=$4 wheels=$5 type=$6
compiler=$(scripts/zig_compiler.sh "$venv" "$2" x86_64-windows-gnu)
tools=$(realpath "$2")
suffix=.cp311-win_amd64.pyd
settings=("build-dir=$build" "cmake.build-type=$type" "build.targets=_ortrain" "cmake.define.ORTRAIN_PYTHON=ON"
          "cmake.define.CMAKE_TOOLCHAIN_FILE=$PWD/cmake/toolchains/windows-x64.cmake"
          "cmake.define.ZIG_COMPILER=$compiler" "cmake.define.ZIG_TOOLS=$tools"
          "cmake.define.Python_INCLUDE_DIR=$windows_python/include" "cmake.define.Python_LIBRARY=$windows_python/python311.dll"
          "cmake.define.PYTHON_MODULE_EXTENSION=$suffix")
export SETUPTOOLS_EXT_SUFFIX=$suffix _PYTHON_HOST_PLATFORM=win-amd64
rm -f "$wheels"/ortrain-*-win_amd64.whl
"$venv/bin/pip" wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps -w "$wheels" \
  "${settings[@]/#/--config-settings=}" .
