#!/usr/bin/env bash
# Compiles Python 3.13 without the GIL from the sources of Debian 13 and installs it into a folder, as bin/python3.13t. Debian has
# no package of such a Python. The script reads the Debian mirror from apt's configuration, and does not change that configuration.
# apt checks the signatures of the sources.
# Usage: scripts/free_threaded_python.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
version=3.13 suite=trixie
fail() {
  echo "free_threaded_python: $*" >&2
  exit 1
}
mkdir -p "$1"
folder=$(realpath "$1")
made_from="$version $suite $(cksum <scripts/free_threaded_python.sh)"
if [ "$(cat "$folder/made-from" 2>/dev/null)" = "$made_from" ]; then exit; fi
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -1)
[ -n "$mirror" ] || fail "found no Debian mirror in apt's configuration; expected one, and its lists (apt-get update)"
scripts/install_missing.sh debian-archive-keyring libffi-dev libssl-dev xz-utils zlib1g-dev

rm -rf "$folder"
mkdir -p "$folder"/apt/{lists,archives}/partial "$folder/source"
echo "setup: downloading the sources of Python $version from Debian's $suite" >&2
echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$folder/apt/sources.list"
options=(-qq -o Dir::Etc::SourceList="$folder/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
  -o Dir::State::Lists="$folder/apt/lists" -o Dir::Cache="$folder/apt" -o APT::Sandbox::User=root
  -o APT::Update::Error-Mode=any -o Acquire::Retries=3)
(cd "$folder/apt" && apt-get "${options[@]}" update &&
  apt-get "${options[@]}" source --download-only "python$version" >/dev/null) ||
  fail "apt-get could not download the sources of Python $version from $mirror, suite $suite; is there a network?"
tar xJf "$folder"/apt/python"$version"_*.orig.tar.xz -C "$folder/source" --strip-components=1

echo "setup: compiling Python $version without the GIL" >&2
log=$folder/build.log
# The variables of make's command line are for ortrain's Makefile.
(cd "$folder/source" && unset MAKEFLAGS MAKEOVERRIDES MFLAGS &&
  ./configure --prefix="$folder" --disable-gil --disable-test-modules --without-ensurepip &&
  make -j "${CMAKE_BUILD_PARALLEL_LEVEL:-2}" && make install) >"$log" 2>&1 || {
  tail -20 "$log" >&2
  fail "Python $version could not be compiled; all messages are in $log"
}
rm -rf "$folder/source" "$folder/apt"
echo "$made_from" >"$folder/made-from"
