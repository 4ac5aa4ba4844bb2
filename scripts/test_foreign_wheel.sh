#!/usr/bin/env bash
# Installs a wheel for another system into a folder and tests the wheel in an emulator: recorded runs, a case of every operator, training on
# the digits, the command line, and the Python tests in the environment variable TESTS, if it is set: files and folders for pytest.
# Usage: scripts/test_foreign_wheel.sh PYTHON WHEEL FOLDER "PLATFORM..." COMMAND...
# PLATFORM is the name of a system in wheels, such as win_amd64. COMMAND runs Python for that system, of the version of PYTHON.
set -euo pipefail
python=$1 wheel=$2 folder=$3 platforms=()
for platform in $4; do platforms+=(--platform "$platform"); done
shift 4
foreign=("$@")
mkdir -p "$folder"
install() {
  "$python" -m pip install --quiet --disable-pip-version-check --target "$folder/site" --upgrade --only-binary=:all: \
    --python-version "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')" --implementation cp "${platforms[@]}" "$@"
}
# The versions are those of this machine, so that they can read the files of cases that this machine wrote. click needs colorama on Windows, and
# pandas tzdata; pip reads such conditions for this machine.
names="numpy onnx ml_dtypes click pyyaml"
if [ -n "${TESTS:-}" ]; then
  names+=" pytest hypothesis onnxruntime scikit-learn flatbuffers pandas pillow safetensors tokenizers jinja2 matplotlib"
fi
# shellcheck disable=SC2086
packages=$("$python" -c 'import importlib.metadata as m, sys
for name in sys.argv[1:]: print(f"{name}=={m.version(name)}")' $names)
packages+=" colorama${TESTS:+ tzdata}"
if [ "$(cat "$folder/packages" 2>/dev/null)" != "$packages" ]; then
  rm -rf "$folder/site"
  # shellcheck disable=SC2086
  install $packages
  echo "$packages" >"$folder/packages"
fi
rm -rf "$folder"/site/ortrain*
install --no-deps "$wheel"

# Under Wine, Python needs pipes or terminals as standard streams, and the path a drive: a test may start Python on another drive.
site=$folder/site
if [[ ${platforms[*]} == *win_amd64* ]]; then site=Z:$site; fi
emulated() { PYTHONPATH=$site "${foreign[@]}" "$@" </dev/null 2>&1 | cat; }
emulated -c 'import platform, ortrain
print(f"wheel: Python {platform.python_version()}, {platform.system()} on {platform.machine()}, {ortrain.__file__}")'
emulated tests/replay/with_package.py
# Ctrl-C needs a console, which Wine creates if the standard input is a terminal.
in_console() {
  PYTHONPATH=$site "$python" -c 'import os, subprocess, sys
sys.exit(subprocess.call(sys.argv[1:], stdin=os.openpty()[1]))' "${foreign[@]}" "$@" 2>&1 | cat
}
if [[ ${platforms[*]} == *win_amd64* ]]; then
  for test in tests/windows/*.py; do in_console "$test"; done
fi
"$python" -c 'from tests.node_cases import node_cases; node_cases()'  # writes the file that is read below
emulated -m tests.replay.operators
"$python" -m tests.replay.digits save "$folder/digits.npz"
emulated -m tests.replay.digits train "$folder/digits.npz" "$folder/digits"
"$python" -m tests.replay.digits check "$folder/digits.npz" "$folder/digits"

# The commands that a user types after the demo.
rm -rf "$folder/demo"
emulated -m ortrain doctor
emulated -m ortrain demo --out "$folder/demo" --epochs 2
emulated -m ortrain train "$folder/demo/artifacts" --data "$folder/demo/train.npz" --validation "$folder/demo/test.npz" --epochs 2
emulated -m ortrain evaluate "$folder/demo/artifacts" --data "$folder/demo/test.npz" --metric accuracy

# A test that hangs prints where it waits, and ends the run. Folders have files of the same name, which one run cannot import.
for tests in ${TESTS:-}; do
  emulated -m pytest -q --quick -p no:cacheprovider -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true "$tests"
done
