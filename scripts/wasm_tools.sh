#!/usr/bin/env bash
# Creates a toolchain for WebAssembly with WASI in a folder: clang, lld and the C library of PyPI's package ziglang. ziglang has no C++
# library with exceptions for WebAssembly, so the build compiles one from the sources in ziglang (cmake/wasm.cmake).
# Usage: scripts/wasm_tools.sh VENV FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(realpath "$1")
mkdir -p "$2/bin" "$2/lib" "$2/include"
tools=$(realpath "$2")

# Highway 1.3: Debian 12's version 1.0 has no vectors of doubles for WebAssembly. NumPy's source distribution contains this version.
# pip asks the build backend for the metadata of a source distribution; here a module of that name answers, so nothing is built.
numpy=2.4.6
unpack_highway() {
  echo "setup: unpacking Highway from the source distribution of numpy $numpy"
  rm -rf "$tools/numpy" "$tools/include/hwy"
  mkdir -p "$tools/numpy"
  cat >"$tools/numpy/mesonpy.py" <<END
import pathlib
def prepare_metadata_for_build_wheel(folder, settings=None):
    place = pathlib.Path(folder, "numpy-$numpy.dist-info")
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\\nName: numpy\\nVersion: $numpy\\n")
    return place.name
END
  PYTHONPATH=$tools/numpy "$venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary numpy --no-build-isolation \
    --dest "$tools/numpy" "numpy==$numpy"
  # -m: the time of unpacking, so that sources that were compiled with other headers are compiled again.
  tar xzmf "$tools/numpy/numpy-$numpy.tar.gz" -C "$tools/include" --strip-components=5 "numpy-$numpy/numpy/_core/src/highway/hwy"
  rm -r "$tools/numpy"
  touch "$tools/highway-$numpy"
}

# The download takes place while ziglang is installed and compiles.
highway=
if [ ! -e "$tools/highway-$numpy" ]; then
  unpack_highway &
  highway=$!
fi

zig=$(scripts/install_zig.sh "$venv" "$tools")
lib=$tools/python/ziglang/lib
export ZIG_GLOBAL_CACHE_DIR=$tools/cache ZIG_LOCAL_CACHE_DIR=$tools/cache

# Features that browsers and Node.js have had since 2023. All of them support the "legacy" form of exceptions.
machine=(-target wasm32-unknown-wasip1 -mcpu=lime1 -msimd128 -fwasm-exceptions)
# Options of the C++ library. It uses the thread functions of the C library, which cannot start threads.
configuration=(-D_LIBCPP_ABI_VERSION=1 -D_LIBCPP_ABI_NAMESPACE=__1 -D_LIBCPP_PSTL_BACKEND_SERIAL
  -D_LIBCPP_HARDENING_MODE_DEFAULT=2 -D_LIBCPP_ASSERTION_SEMANTIC_DEFAULT=2)
for has in THREADS THREAD_API_PTHREAD MONOTONIC_CLOCK TERMINAL MUSL_LIBC FILESYSTEM RANDOM_DEVICE LOCALIZATION UNICODE \
           WIDE_CHARACTERS; do
  configuration+=("-D_LIBCPP_HAS_$has=1")
done
for lacks in THREAD_API_EXTERNAL THREAD_API_WIN32 VENDOR_AVAILABILITY_ANNOTATIONS TIME_ZONE_DATABASE; do
  configuration+=("-D_LIBCPP_HAS_$lacks=0")
done
headers=(-nostdinc -nostdinc++ -isystem "$lib/libcxx/include" -isystem "$lib/libcxxabi/include" -isystem "$lib/include"
  -isystem "$lib/libc/include/wasm-wasi-musl" -isystem "$lib/libc/include/generic-musl")

# Writes a program with the given name that runs the given command with the program's arguments.
program() {
  printf '#!/bin/sh\nexec %s "$@"\n' "${*:2}" >"$tools/bin/$1.new"
  chmod +x "$tools/bin/$1.new"
  if cmp -s "$tools/bin/$1.new" "$tools/bin/$1"; then rm "$tools/bin/$1.new"; else mv "$tools/bin/$1.new" "$tools/bin/$1"; fi
}
program clang++ "$zig" clang --driver-mode=g++ --no-default-config -Wno-unused-command-line-argument "${machine[@]}" \
  "${configuration[@]}" "${headers[@]}" -Xclang -fno-pch-timestamp -B"$tools/bin" -L"$tools/lib"
program wasm-ld "$zig" wasm-ld
program ar "$zig" ar
program ranlib "$zig" ranlib
# Links to headers that do not depend on the machine. Their folder cannot be used, because it also contains the machine's C library.
for library in flatbuffers catch2; do
  if [ -e "/usr/include/$library" ]; then ln -sfn "/usr/include/$library" "$tools/include/$library"; fi
done

# The C library: ziglang compiles it when it links a program, for each kind of program.
if [ ! -e "$tools/lib/crt1-reactor.o" ]; then
  echo "setup: compiling the C library for WebAssembly"
  echo 'int main(void) { return 0; }' >"$tools/program.c"
  for model in command reactor; do
    "$zig" cc -target wasm32-wasi -mcpu=lime1+simd128+exception_handling -Os -mexec-model=$model "$tools/program.c" -o "$tools/program.wasm"
  done
  for file in libc.a libzigc.a libcompiler_rt.a crt1-command.o crt1-reactor.o; do
    cp "$(find "$tools/cache" -name $file | head -1)" "$tools/lib/"
  done
fi
if [ -n "$highway" ]; then wait "$highway"; fi
