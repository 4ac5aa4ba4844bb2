#!/bin/sh
# Creates a virtual environment with the packages of a requirements file. The environment also finds the packages of the project's
# virtual environment, ortrain included. Usage: scripts/make_environment.sh FOLDER PROJECT_VENV REQUIREMENTS
set -eu
folder=$1
project=$2
requirements=$3
if cmp -s "$requirements" "$folder/.requirements"; then exit; fi
echo "$folder: installing the packages of $requirements"
rm -rf "$folder"
"$project/bin/python" -m venv "$folder"
site='import sysconfig; print(sysconfig.get_path("purelib"))'
"$project/bin/python" -c "$site" >"$("$folder/bin/python" -c "$site")/project.pth"
"$folder/bin/python" -m pip install --quiet --no-warn-conflicts --disable-pip-version-check -r "$requirements"
cp "$requirements" "$folder/.requirements"
