#!/bin/sh
# Creates a virtual environment with the packages of requirements-integrations.txt, which finds all others, ortrain among them, in
# the one of the project. Usage: scripts/make_integrations.sh FOLDER PROJECT_VENV
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
folder=$1
project=$2
if cmp -s "$here/requirements-integrations.txt" "$folder/.requirements"; then exit; fi
echo "$folder: installing the packages of requirements-integrations.txt"
rm -rf "$folder"
"$project/bin/python" -m venv "$folder"
site='import sysconfig; print(sysconfig.get_path("purelib"))'
"$project/bin/python" -c "$site" >"$("$folder/bin/python" -c "$site")/project.pth"
"$folder/bin/python" -m pip install --quiet --no-warn-conflicts --disable-pip-version-check \
  -r "$here/requirements-integrations.txt"
cp "$here/requirements-integrations.txt" "$folder/.requirements"
