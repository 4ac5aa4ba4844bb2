#!/usr/bin/env bash
# Makes a C++ toolchain for Windows on x86-64 in a folder, with PyPI's package ziglang: clang, a linker, the C library of MinGW-w64
# and a C++ library that it links statically.
# Usage: scripts/windows_tools.sh VENV FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(realpath "$1")
mkdir -p "$2/bin" "$2/include"
tools=$(realpath "$2")
zig=$(scripts/install_zig.sh "$venv" "$tools")

# A program of the given name that calls zig with the rest and its arguments.
program() {
  printf '#!/bin/sh\nexport ZIG_GLOBAL_CACHE_DIR=%s/cache ZIG_LOCAL_CACHE_DIR=%s/cache\nexec %s %s "$@"\n' \
    "$tools" "$tools" "$zig" "${*:2}" >"$tools/bin/$1.new"
  chmod +x "$tools/bin/$1.new"
  if cmp -s "$tools/bin/$1.new" "$tools/bin/$1"; then rm "$tools/bin/$1.new"; else mv "$tools/bin/$1.new" "$tools/bin/$1"; fi
}
# Without the checks and the information for debuggers that zig adds unless it is told not to.
program clang++ c++ -target x86_64-windows-gnu -fno-sanitize=undefined -g0 -Xclang -fno-pch-timestamp
program ar ar
program ranlib ranlib
program rc rc
# Headers of this machine that do not depend on it. The folder they are in also has those of its C library.
for library in hwy flatbuffers catch2; do
  if [ -e "/usr/include/$library" ]; then ln -sfn "/usr/include/$library" "$tools/include/$library"; fi
done
