#!/bin/sh
# Builds the Swift tests and runs them: the suites of Swift Testing, and one of XCTest.
#
#   tests/swift/run.sh PYTHON BUILD LIBRARY_FOLDER [SWIFT TEST OPTION...]
#
# PYTHON is an interpreter with the installed package, BUILD the folder where `make swift` wrote ortrain.pc, LIBRARY_FOLDER the
# folder of libortrain.so.
set -eu
python=$1
build=$2
library=$3
shift 3
cd "$(dirname "$0")/../.."
"$python" tests/objc/prepare.py "$build/data"
export LD_LIBRARY_PATH="$library${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export PKG_CONFIG_PATH="$PWD/$build"
export ORTRAIN_TEST_DATA="$PWD/$build/data"
# One test after another: some look at the memory of the process.
exec swift test --no-parallel --scratch-path "$build" -Xswiftc -warnings-as-errors "$@"
