#!/usr/bin/env bash
# Builds build/ortrain.xcframework for Package.swift and the podspec, on a Mac with Xcode: a static library with its headers for macOS, iOS
# and the simulator of iOS, each on arm64. The script needs CMake, Ninja, and Homebrew's packages highway and flatbuffers.
# Usage: scripts/xcframework.sh BUILD_FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
for tool in cmake ninja xcodebuild xcrun brew python3 flatc; do
  command -v "$tool" >/dev/null || { echo "xcframework: $tool is not installed; this script needs a Mac with Xcode, and brew install cmake ninja highway flatbuffers" >&2; exit 1; }
done
# The oldest systems that Package.swift supports.
macos=12.0 ios=15.0

headers=$build/xcframework/headers
rm -rf "$headers" "$build/ortrain.xcframework"
python3 scripts/swift_package.py headers "$headers/COrtrain"  # a folder, since Xcode copies the headers of all packages into one
libraries=()
# Usage: library SDK SYSTEM OLDEST
library() {
  local folder=$build/xcframework/$1
  cmake -S . -B "$folder" -G Ninja -DCMAKE_SYSTEM_NAME="$2" -DCMAKE_SYSTEM_PROCESSOR=arm64 -DCMAKE_OSX_SYSROOT="$1" \
    -DCMAKE_OSX_ARCHITECTURES=arm64 -DCMAKE_OSX_DEPLOYMENT_TARGET="$3" -DCMAKE_BUILD_TYPE=Release -DORTRAIN_PYTHON=OFF \
    -DPython_EXECUTABLE="$(command -v python3)" -DFLATC="$(command -v flatc)" \
    -DHIGHWAY_INCLUDE="$(brew --prefix highway)/include" -DFLATBUFFERS_INCLUDE="$(brew --prefix flatbuffers)/include"
  cmake --build "$folder" --target static
  libraries+=(-library "$folder/libortrain.a" -headers "$headers")
}
library macosx Darwin "$macos"
library iphoneos iOS "$ios"
library iphonesimulator iOS "$ios"
xcodebuild -create-xcframework "${libraries[@]}" -output "$build/ortrain.xcframework"
cp -R LICENSE licenses "$build/ortrain.xcframework"
