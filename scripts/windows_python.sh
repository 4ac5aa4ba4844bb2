#!/usr/bin/env bash
# Puts a Python for Windows into a folder: python.exe, its modules, headers, and the C library of Windows. No package of PyPI contains all
# of it, so the parts come from several: the interpreter from panda3d, which packs programs with it; the C library from dotnetcore2, because
# that of Wine lacks functions that NumPy needs; the C++ library from msvc-runtime; headers and modules in Python from the given
# interpreter, which must have the same version. Two libraries are compiled here: python3.dll, which passes calls of wheels for any
# version of Python (abi3) on to that of the version, and bcryptprimitives.dll, a part of Windows 10 that Wine 8 lacks and Rust needs.
# Usage: scripts/windows_python.sh VENV TOOLS FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
mkdir -p "$2" "$3"
tools=$(realpath "$2") folder=$(realpath "$3")
packages=(panda3d==1.10.16 msvc-runtime==14.44.35112 dotnetcore2==3.1.23)
version=3.11
found=$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [ "$found" != "$version" ]; then
  echo "windows_python: the virtual environment has Python $found; expected Python $version, which panda3d contains" >&2
  exit 1
fi
made_from="${packages[*]} $(cksum <scripts/windows_python.sh)"
if [ "$(cat "$folder/packages" 2>/dev/null)" = "$made_from" ]; then exit; fi
echo "setup: installing Python $version for Windows" >&2
rm -rf "$folder"
mkdir -p "$folder/wheels" "$folder/unpacked"
"$venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version "$version" \
  --platform win_amd64 --dest "$folder/wheels" "${packages[@]}"
for wheel in "$folder"/wheels/*.whl; do "$venv/bin/python" -m zipfile -e "$wheel" "$folder/unpacked"; done
compiler=$(scripts/zig_compiler.sh "$venv" "$tools" x86_64-windows-gnu)
cd "$folder"
mv unpacked/deploy_libs/{python311.dll,libffi-8.dll,sqlite3.dll,libcrypto-3.dll,libssl-3.dll,*.pyd} .
mv unpacked/msvc_runtime-*.data/data/Scripts/{vcruntime140,vcruntime140_1,msvcp140,msvcp140_1}.dll .
mv unpacked/dotnetcore2/bin/shared/Microsoft.NETCore.App/*/ucrtbase.dll .
rm -rf unpacked wheels
cp -r "$("$OLDPWD/$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" Lib
rm -rf Lib/{lib-dynload,site-packages,test,ensurepip,config-*}
find Lib -name __pycache__ -prune -exec rm -r {} +
mkdir Lib/site-packages
cp -r "$("$OLDPWD/$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')" include
cp "$OLDPWD/cmake/toolchains/windows/pyconfig.h" include/
cat >python.cpp <<'EOF'
#include <windows.h>
extern "C" __declspec(dllimport) int Py_Main(int, wchar_t**);
int main() {
  int count = 0;
  wchar_t** const arguments = CommandLineToArgvW(GetCommandLineW(), &count);
  return Py_Main(count, arguments);
}
EOF
"$compiler" -O2 -o python.exe python.cpp python311.dll -lshell32
{ echo EXPORTS; llvm-readobj --coff-exports python311.dll | sed -n 's/^ *Name: \(.*\)$/  \1 = python311.\1/p'; } >python3.def
echo 'extern "C" const int forwards = 0;' >python3.cpp
"$compiler" -shared -o python3.dll python3.cpp python3.def
cat >bcryptprimitives.cpp <<'EOF'
#include <windows.h>
#include <ntsecapi.h>
extern "C" __declspec(dllexport) BOOL ProcessPrng(PBYTE bytes, SIZE_T count) {
  return RtlGenRandom(bytes, static_cast<ULONG>(count));
}
EOF
"$compiler" -O2 -shared -o bcryptprimitives.dll bcryptprimitives.cpp -ladvapi32
rm ./*.cpp python3.def
echo "$made_from" >packages
