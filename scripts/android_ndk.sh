#!/usr/bin/env bash
# Prints the path of the CMake toolchain file in a folder with Android's NDK, or reports why this folder cannot compile ortrain.
# Usage: scripts/android_ndk.sh NDK
set -euo pipefail
ndk=${1:-}
fail() {
  echo "android: $*" >&2
  exit 1
}
oldest=26  # its clang 17 is the first clang that compiles all C++20 features in the sources
[ -n "$ndk" ] || fail "expected the folder of an NDK, as in make android ANDROID_NDK=\$HOME/Android/Sdk/ndk/28.2.13676358"
[ -d "$ndk" ] || fail "expected the folder of an NDK in ANDROID_NDK; $ndk is not a folder"
file=$ndk/build/cmake/android.toolchain.cmake
[ -e "$file" ] || fail "expected a folder of an NDK, with build/cmake/android.toolchain.cmake; $ndk has no such file"
version=$(sed -n 's/^Pkg.Revision *= *\([0-9]*\).*/\1/p' "$ndk/source.properties" 2>/dev/null || true)
[ -n "$version" ] || fail "expected the version of the NDK (Pkg.Revision) in $ndk/source.properties, found none"
[ "$version" -ge "$oldest" ] || fail "ortrain needs an NDK of version $oldest or newer; $ndk has version $version"
realpath "$file"
