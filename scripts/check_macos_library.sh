#!/usr/bin/env bash
# Checks libortrain.dylib without a Mac: its processor, the name that programs record, the libraries that it needs, and its exports.
# Usage: scripts/check_macos_library.sh LIBRARY
source "$(dirname "$0")/check_library.sh"

show() { llvm-objdump --macho "$@" "$library" | sed 1d; }

same "processor" "$(llvm-readobj --file-headers "$library" | awk '/^Arch:/ {print $2}')" aarch64
same "install name" "$(show --dylib-id)" "@rpath/$(basename "$library")"
same "libraries" "$(show --dylibs-used | awk 'NR > 1 {print $1}' | sort | xargs)" /usr/lib/libSystem.B.dylib
# With Mach-O's underscore.
declared=$(sed -E 's/(^| )/\1_/g' <<<"$declared")
# The linker of ziglang ignores -exported_symbols_list: the library also exports the operators new and delete of the
# C++ library, and two symbols that mark the beginning of the library.
others='^(__Z(n[wa]|d[la])[A-Za-z0-9_]*|__mh_dylib_header|___dso_handle)$'
same "exports" "$(show --exports-trie | awk '/^0x/ {print $2}' | grep -Ev "$others" | sort | xargs)" "$declared"
