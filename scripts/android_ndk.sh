#!/usr/bin/env bash
# Prints the path of the CMake toolchain file in a folder with Android's NDK, or reports why this folder cannot compile ortrain.
# Usage: scripts/android_ndk.sh NDK
set -euo pipefail
ndk=${1:-}
fail() {
  echo "android: $*" >&2
  exit 1
}
oldest=26  # its clang 17 is the first that compiles all of the C++20 that the sources use
[ -n "$ndk" ] || fail "expected the folder of an NDK, as in make android ANDROID_NDK=\$HOME/Android/Sdk/ndk/28.2.13676358"
[ -d "$ndk" ] || fail "ANDROID_NDK should be the folder of an NDK; $ndk is not a folder"
file=$ndk/build/cmake/android.toolchain.cmake
[ -e "$file" ] || fail "ANDROID_NDK should be the folder of an NDK, which has build/cmake/android.toolchain.cmake; $ndk does not"
version=$(sed -n 's/^Pkg.Revision *= *\([0-9]*\).*/\1/p' "$ndk/source.properties" 2>/dev/null || true)
[ -n "$version" ] || fail "$ndk/source.properties should state the version of the NDK (Pkg.Revision); it does not"
[ "$version" -ge "$oldest" ] || fail "ortrain needs an NDK of version $oldest or newer; $ndk has version $version"
realpath "$file"
