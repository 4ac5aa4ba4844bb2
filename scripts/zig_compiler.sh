#!/usr/bin/env bash
# Writes a C++ compiler for another system into a folder, by PyPI's package ziglang, with the headers of Highway, FlatBuffers and
# Catch2, and prints its path.
# Usage: scripts/zig_compiler.sh VENV TOOLS TARGET
# TARGET is zig's name, as x86_64-linux-gnu.2.28.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(realpath "$1") target=$3
mkdir -p "$2/include" "$2/bin"
tools=$(realpath "$2")
zig=$(scripts/install_zig.sh "$venv" "$tools")
compiler=$tools/bin/clang++-$target
# Without the checks and the information for debuggers that zig adds unless it is told not to.
printf '#!/bin/sh\nexport ZIG_GLOBAL_CACHE_DIR=%s/cache ZIG_LOCAL_CACHE_DIR=%s/cache\nexec %s c++ -target %s %s "$@"\n' \
  "$tools" "$tools" "$zig" "$target" '-fno-sanitize=undefined -g0 -Xclang -fno-pch-timestamp' >"$compiler.new"
chmod +x "$compiler.new"
# Build systems compile everything again after a change of the compiler's time.
if cmp -s "$compiler.new" "$compiler"; then rm "$compiler.new"; else mv "$compiler.new" "$compiler"; fi
# Headers of this machine that do not depend on it. The folder they are in also has those of its C library.
for library in hwy flatbuffers catch2; do
  if [ -e "/usr/include/$library" ]; then ln -sfn "/usr/include/$library" "$tools/include/$library"; fi
done
echo "$compiler"
