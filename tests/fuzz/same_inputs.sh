#!/usr/bin/env bash
# same_inputs.sh FOLDER OTHER COMMAND...: the inputs of a run of fuzz_reader follow from the seed and the files, not from the
# clock or from where the folders are. COMMAND is the program, after an emulator if it needs one.
set -euo pipefail
first=$1 second=$2
shift 2
command=("$@")
elsewhere=$(mktemp -d)
trap 'rm -rf "$elsewhere"' EXIT
cp -r "$first" "$elsewhere/z"
cp -r "$second" "$elsewhere/a"

# digest SEED FOLDER...
digest() {
  seed=$1
  shift
  "${command[@]}" -runs=2000 -seed="$seed" -findings="$elsewhere" "$@" 2>&1 | sed -n 's/.*none failed; digest //p'
}
here=$(digest 7 "$first" "$second")
there=$(digest 7 "$elsewhere/z" "$elsewhere/a")
other=$(digest 8 "$first" "$second")
echo "seed 7: $here, elsewhere $there; seed 8: $other"
test -n "$here" && test "$here" = "$there" && test "$here" != "$other"
