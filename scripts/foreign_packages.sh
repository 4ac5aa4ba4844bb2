#!/usr/bin/env bash
# Unpacks Debian packages of another architecture into a folder, without changing the system's packages.
# Usage: scripts/foreign_packages.sh ARCHITECTURE FOLDER PACKAGE...
set -euo pipefail
architecture=$1 folder=$2
shift 2
stamp=$folder/.unpacked
if [ "$(cat "$stamp" 2>/dev/null)" = "$architecture $*" ]; then exit 0; fi
mkdir -p "$folder/apt/lists/partial" "$folder/apt/archives/partial"
folder=$(cd "$folder" && pwd)
stamp=$folder/.unpacked
options=(-qq -o APT::Architecture="$architecture" -o APT::Architectures::="$architecture" -o Dir::State::lists="$folder/apt/lists"
         -o Dir::State::status=/dev/null -o Dir::Cache="$folder/apt" -o APT::Sandbox::User=root -o Acquire::Retries=3)
apt-get "${options[@]}" update
(cd "$folder/apt" && apt-get "${options[@]}" download "$@")
for package in "$folder"/apt/*.deb; do dpkg -x "$package" "$folder"; done
rm -r "$folder/apt"
echo "$architecture $*" >"$stamp"
