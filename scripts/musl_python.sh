#!/usr/bin/env bash
# Puts a Python for Linux with musl into a folder: an interpreter, its modules and NumPy, which need Debian's package musl. The interpreter and
# its compiled modules come from cx_Freeze, which packs programs with them; the modules in Python come from the given interpreter, which
# must have the same version. Later releases of cx_Freeze and NumPy need a later musl than Debian's 1.2.3. Two parts are made here: a
# module with the command line of Python, which the interpreter calls at its start, and a zlib, since that of musl's systems is not in
# wheels: it consists of the objects of Debian's static library and the functions of glibc that they need.
# Usage: scripts/musl_python.sh VENV TOOLS FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(realpath "$1")
mkdir -p "$2" "$3"
tools=$(realpath "$2") folder=$(realpath "$3")
packages=(numpy==2.0.2 click==8.1.8)
freezer=cx_Freeze==6.15.16 version=3.11
found=$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [ "$found" != "$version" ]; then
  echo "musl_python: the virtual environment has Python $found; expected Python $version, which this script installs" >&2
  exit 1
fi
made_from="$freezer ${packages[*]} $(cksum <scripts/musl_python.sh)"
if [ "$(cat "$folder/packages" 2>/dev/null)" = "$made_from" ]; then exit; fi
echo "setup: installing Python $version for musl" >&2
scripts/install_missing.sh musl zlib1g-dev
rm -rf "$folder"
mkdir -p "$folder/lib"
for_musl() {
  "$venv/bin/pip" "$1" --quiet --disable-pip-version-check --only-binary=:all: --python-version "$version" --implementation cp \
    --platform musllinux_1_1_x86_64 "${@:2}"
}
for_musl download --no-deps --dest "$folder" "$freezer"
for_musl install --no-deps --target "$folder/lib/site-packages" "${packages[@]}"
"$venv/bin/python" -m zipfile -e "$folder"/cx_Freeze-*.whl "$folder/unpacked"
bases=$folder/unpacked/cx_Freeze/bases
cp -r "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')/." "$folder/stdlib"
rm -rf "$folder"/stdlib/{lib-dynload,site-packages,test,ensurepip,idlelib,tkinter,config-*}
cp "$bases"/console-cpython-* "$folder/python"
chmod +x "$folder/python"
cp -r "$folder"/stdlib/. "$bases"/lib/. "$bases"/lib-dynload/. "$folder/lib/"
rm -rf "$folder"/{unpacked,stdlib} "$folder"/*.whl
cat >"$folder/lib/__startup__.py" <<'END'
"""The command line of Python: -c CODE, -m MODULE or FILE, each with arguments."""

import os
import runpy
import sys


def init():
    """Do nothing; the interpreter calls this function first."""


def run():
    """Run what the arguments name."""
    library = os.path.join(os.path.dirname(sys.executable), "lib")
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [*paths, library, os.path.join(library, "site-packages")]
    sys.argv.pop(0)
    if sys.argv[0] == "-c":
        sys.path.insert(0, "")
        code = sys.argv.pop(1)
        exec(compile(code, "<string>", "exec"), sys.modules["__main__"].__dict__)
    elif sys.argv[0] == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv.pop(0)
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
        runpy.run_path(sys.argv[0], run_name="__main__")
END
cat >"$folder/fortify.cpp" <<'END'
#include <stdarg.h>
#include <stdio.h>
extern "C" int __vsnprintf_chk(char* text, size_t size, int, size_t, const char* format, va_list values) {
  return vsnprintf(text, size, format, values);
}
extern "C" int __snprintf_chk(char* text, size_t size, int, size_t, const char* format, ...) {
  va_list values;
  va_start(values, format);
  const int length = vsnprintf(text, size, format, values);
  va_end(values);
  return length;
}
END
compiler=$(scripts/zig_compiler.sh "$venv" "$tools" x86_64-linux-musl)
"$compiler" -shared -fPIC -O2 -Wl,-soname,libz.so.1 -Wl,-Bsymbolic -o "$folder/lib/libz.so.1" "$folder/fortify.cpp" \
  -Wl,--whole-archive "$("${CXX:-c++}" -print-file-name=libz.a)" -Wl,--no-whole-archive
rm "$folder/fortify.cpp"
echo "$made_from" >"$folder/packages"
