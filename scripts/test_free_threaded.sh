#!/usr/bin/env bash
# Tests a wheel for a Python without the GIL: replays the recorded runs, trains with the command line, and runs the tests with
# sessions in several threads five times, because the order of the threads varies. Fails if the GIL is on after `import ortrain` or
# after the tests.
# Usage: scripts/test_free_threaded.sh FOLDER BUILD PYTHON    (BUILD: as in scripts/test_pythons.sh)
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1 build=$2 python=$3
unset PYTHON_GIL  # 0 would keep the GIL off even if a module needed the GIL
export PIP_PREFER_BINARY=1  # the latest NumPy has no wheel for Python 3.13 without the GIL
"$python" -c 'import sys, sysconfig; sys.exit(not sysconfig.get_config_var("Py_GIL_DISABLED"))' || {
  echo "test_free_threaded: expected a Python without the GIL; $python has the GIL" >&2
  exit 1
}
scripts/test_pythons.sh "$folder" "$build" "$python"
venv=$folder/$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$venv/bin/python" - <<'END_OF_CODE'
import sys

import ortrain.api
import ortrain.trainer

if sys._is_gil_enabled():
    sys.exit(f"test_free_threaded: the GIL is on after import ortrain in {sys.executable}; expected that it is off")
print(f"test_free_threaded: the GIL is off after import ortrain, in Python {sys.version}")
END_OF_CODE
# onnx has no wheel for Python 3.13 without the GIL, and tests/conftest.py imports onnx. The last test of the file fails if the GIL
# is on.
"$venv/bin/pip" install --quiet --disable-pip-version-check pytest
for round in 1 2 3 4 5; do
  echo "test_free_threaded: sessions in several threads, round $round"
  "$venv/bin/python" -m pytest -q -p no:cacheprovider --noconftest tests/session/test_concurrent_sessions.py
done
