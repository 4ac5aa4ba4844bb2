#!/usr/bin/env bash
# Creates a C++ compiler for another system or another C library in a folder, and prints the path of the compiler. The folder also gets
# tools for static libraries and the headers of Highway, FlatBuffers and Catch2. The compiler is that of PyPI's package ziglang.
# Usage: scripts/zig_compiler.sh VENV TOOLS TARGET
# TARGET is zig's name of the system, such as x86_64-linux-gnu.2.28.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(realpath "$1") target=$3
mkdir -p "$2/include" "$2/bin"
tools=$(realpath "$2")
zig=$(scripts/install_zig.sh "$venv" "$tools")

# Writes a program with the given name that runs zig with the given arguments and the program's arguments.
program() {
  printf '#!/bin/sh\nexport ZIG_GLOBAL_CACHE_DIR=%s/cache ZIG_LOCAL_CACHE_DIR=%s/cache\nexec %s %s "$@"\n' \
    "$tools" "$tools" "$zig" "${*:2}" >"$tools/bin/$1.new"
  chmod +x "$tools/bin/$1.new"
  # If the modification time of the compiler changes, build systems compile everything again.
  if cmp -s "$tools/bin/$1.new" "$tools/bin/$1"; then rm "$tools/bin/$1.new"; else mv "$tools/bin/$1.new" "$tools/bin/$1"; fi
}
case $target in
  *-ios.*)
    # zig cannot make a C library or a C++ library for iOS: this compiler only compiles objects, with the headers of Apple's systems, and
    # rejects functions that the C++ library of the oldest iOS lacks (vendor availability).
    lib=$(dirname "$zig")/lib
    settings=()
    for setting in ABI_VERSION=1 ABI_NAMESPACE=__1 HAS_THREADS=1 HAS_MONOTONIC_CLOCK=1 HAS_TERMINAL=1 HAS_MUSL_LIBC=0 HAS_FILESYSTEM=1 \
      HAS_RANDOM_DEVICE=1 HAS_LOCALIZATION=1 HAS_UNICODE=1 HAS_WIDE_CHARACTERS=1 HAS_TIME_ZONE_DATABASE=0 HAS_THREAD_API_PTHREAD=1 \
      HAS_THREAD_API_EXTERNAL=0 HAS_THREAD_API_WIN32=0 HARDENING_MODE_DEFAULT=2 ASSERTION_SEMANTIC_DEFAULT=2 LIBC_NEWLIB=0 \
      LIBC_LLVM_LIBC=0 LIBC_PICOLIBC=0 PSTL_BACKEND_SERIAL HAS_VENDOR_AVAILABILITY_ANNOTATIONS=1; do
      settings+=("-D_LIBCPP_$setting")
    done
    program "clang++-$target" clang -target "arm64-apple-ios${target##*-ios.}" -Xclang -fno-pch-timestamp -nostdinc "${settings[@]}" -isystem "$lib/libcxx/include" \
      -isystem "$lib/libcxxabi/include" -isystem "$lib/include" -isystem "$lib/libc/include/any-darwin-any"
    ;;
  *)
    # zig adds checks and debug information by default; these options turn both off.
    program "clang++-$target" c++ -target "$target" -fno-sanitize=undefined -g0 -Xclang -fno-pch-timestamp
    ;;
esac
for tool in ar ranlib rc; do program "$tool" "$tool"; done
# Links to headers that do not depend on the machine. Their folder cannot be used, because it also contains the machine's C library.
for library in hwy flatbuffers catch2; do
  if [ -e "/usr/include/$library" ]; then ln -sfn "/usr/include/$library" "$tools/include/$library"; fi
done
echo "$tools/bin/clang++-$target"
