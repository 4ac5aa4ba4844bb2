#!/usr/bin/env bash
# Creates a source distribution, installs it while the development packages of the system are hidden, and replays recorded runs with the
# installed package. So `pip install ortrain` works on a machine that has only a C++ compiler and access to PyPI.
# Usage: scripts/test_sdist.sh PYTHON FOLDER [BUILD_TYPE]
set -euo pipefail
python=$1 folder=$2 type=${3:-Release}
rm -rf "$folder"
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
"$python" -c 'import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])' "$folder" >"$folder/sdist.log" 2>&1 ||
  { cat "$folder/sdist.log" >&2; exit 1; }
python3 -m venv "$folder/venv"

# In a mount namespace, empty files and folders hide the headers and tools of the development packages.
hidden=(/usr/include/hwy /usr/include/flatbuffers /usr/include/google /usr/bin/flatc /usr/bin/protoc)
cover='for path in "$@"; do
  if [ -d "$path" ]; then mount -t tmpfs none "$path"; elif [ -e "$path" ]; then mount --bind /dev/null "$path"; fi; done'
install="env CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-1} $folder/venv/bin/pip install --disable-pip-version-check --quiet --config-settings=cmake.build-type=$type $folder/ortrain-*.tar.gz"
unshare --map-root-user --mount bash -c "set -e; $cover; ! ls /usr/include/hwy/*.h 2>/dev/null; $install" hide "${hidden[@]}"

cd "$folder"  # outside the package's sources, so that Python imports the installed package
venv/bin/python "$OLDPWD/tests/replay/with_package.py"
