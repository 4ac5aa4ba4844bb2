# For scripts that check a library of another system (check_macos_library.sh, check_windows_library.sh), which source this file with
# the path of the library: $library, $declared with the functions that the C headers declare, and a function to compare with.
set -euo pipefail
library=$(realpath "$1")
cd "$(dirname "$0")/.."
declared=$(grep -rhoP '^ORT_EXPORT.*ORT_API_CALL \K\w+' core/include | sort | xargs)

# Fails unless the second and the third argument are equal.
same() {
  if [ "$2" != "$3" ]; then
    echo "$library: $1: expected '$3', found '$2'" >&2
    exit 1
  fi
  echo "$1: $2"
}
