#!/usr/bin/env bash
# Prints the path of the CMake toolchain file in a folder with the Android NDK, or the reason why the folder cannot compile ortrain.
# Usage: scripts/android_ndk.sh NDK
set -euo pipefail
ndk=${1:-}
fail() {
  echo "android: $*" >&2
  exit 1
}
oldest=26  # the first version whose clang (17) compiles all C++20 features that the sources use
[ -n "$ndk" ] || fail "set ANDROID_NDK to the folder of an NDK, for example make android ANDROID_NDK=\$HOME/Android/Sdk/ndk/28.2.13676358"
[ -d "$ndk" ] || fail "ANDROID_NDK must be the folder of an NDK; the folder $ndk does not exist"
file=$ndk/build/cmake/android.toolchain.cmake
[ -e "$file" ] || fail "ANDROID_NDK must be the folder of an NDK; $ndk does not contain build/cmake/android.toolchain.cmake"
version=$(sed -n 's/^Pkg.Revision *= *\([0-9]*\).*/\1/p' "$ndk/source.properties" 2>/dev/null || true)
[ -n "$version" ] || fail "$ndk/source.properties must state the version of the NDK (Pkg.Revision); expected a number, found none"
[ "$version" -ge "$oldest" ] || fail "ortrain needs an NDK of version $oldest or newer; $ndk has version $version"
realpath "$file"
