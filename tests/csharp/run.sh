#!/bin/sh
# Builds the C# tests against build/csharp/Microsoft.ML.OnnxRuntime.dll with Mono's compiler and runs them with NUnit.
#
#   tests/csharp/run.sh PYTHON LIBRARY_FOLDER [NUNIT OPTION...]
#
# PYTHON is an interpreter with the installed package, LIBRARY_FOLDER the folder of libortrain.so.
set -eu
python=$1
library=$2
shift 2
cd "$(dirname "$0")/../.."
out=build/csharp/tests
mkdir -p "$out"
"$python" tests/csharp/prepare.py "$out/data"
framework=$(find /usr/lib/cli /usr/lib/mono -name nunit.framework.dll 2>/dev/null | head -n 1)
[ -n "$framework" ] || { echo "NUnit is missing; apt-get install nunit-console libnunit-framework2.6.3-cil" >&2; exit 1; }
cp build/csharp/Microsoft.ML.OnnxRuntime.dll "$framework" "$out/"
mcs -nologo -target:library -langversion:7.2 -unsafe -debug -warn:4 -warnaserror -out:"$out/Tests.dll" \
  -r:build/csharp/Microsoft.ML.OnnxRuntime.dll -r:"$framework" tests/csharp/*.cs
export LD_LIBRARY_PATH="$library${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export ORTRAIN_TEST_DATA="$PWD/$out/data"
export ORTRAIN_API_INVENTORY="$PWD/tests/csharp/api_inventory.txt"
export ORTRAIN_REFERENCE_MEMBERS="$PWD/tests/data/csharp_members.txt"
export ORTRAIN_ABSENT_MEMBERS="$PWD/tests/csharp/absent_members.txt"
exec nunit-console -nologo -work="$out" "$@" "$out/Tests.dll"
