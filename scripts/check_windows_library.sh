#!/usr/bin/env bash
# Checks ortrain.dll without Windows: its processor, the libraries that it needs, and its exports.
# Usage: scripts/check_windows_library.sh LIBRARY
source "$(dirname "$0")/check_library.sh"

same "processor" "$(llvm-readobj --file-headers "$library" | awk '/Machine:/ {print $2}')" IMAGE_FILE_MACHINE_AMD64
# Every Windows 10 contains these libraries: a program needs no library beside ortrain.dll.
needed=$(llvm-readobj --coff-imports "$library" | awk '/^ *Name:/ {print tolower($2)}' | sort)
echo "libraries: $(xargs <<<"$needed")"
same "libraries that Windows lacks" "$(grep -Ev '^(kernel32|advapi32|ntdll|api-ms-win-[a-z0-9-]+)\.dll$' <<<"$needed" | xargs)" ""
same "exports" "$(llvm-readobj --coff-exports "$library" | awk '/^ *Name:/ {print $2}' | sort | xargs)" "$declared"
