#!/usr/bin/env bash
# Checks libortrain.dylib without a Mac: its processor, the name that programs record, the libraries that it needs, and its exports.
# Usage: scripts/check_macos_library.sh LIBRARY
set -euo pipefail
library=$(realpath "$1")
cd "$(dirname "$0")/.."

# Fails unless the second and the third argument are equal.
same() {
  if [ "$2" != "$3" ]; then
    echo "$library: $1: expected '$3', found '$2'" >&2
    exit 1
  fi
  echo "$1: $2"
}
show() { llvm-objdump --macho "$@" "$library" | sed 1d; }

same "processor" "$(llvm-readobj --file-headers "$library" | awk '/^Arch:/ {print $2}')" aarch64
same "install name" "$(show --dylib-id)" "@rpath/$(basename "$library")"
same "libraries" "$(show --dylibs-used | awk 'NR > 1 {print $1}' | sort | xargs)" /usr/lib/libSystem.B.dylib
# The functions that the C headers declare, with Mach-O's underscore.
declared=$(grep -rhoP '^ORT_EXPORT.*ORT_API_CALL \K\w+' core/include | sed 's/^/_/' | sort | xargs)
# The linker of ziglang ignores -exported_symbols_list: the library also exports the operators new and delete of the
# C++ library, and two symbols that mark the beginning of the library.
others='^(__Z(n[wa]|d[la])[A-Za-z0-9_]*|__mh_dylib_header|___dso_handle)$'
same "exports" "$(show --exports-trie | awk '/^0x/ {print $2}' | grep -Ev "$others" | sort | xargs)" "$declared"
