#!/usr/bin/env bash
# Builds the C# library and its tests for .NET and runs the tests.
#
#   tests/dotnet/run.sh PYTHON FOLDER LIBRARY [TEXT...]
#
# FOLDER contains a runtime (scripts/dotnet_runtime.sh), and gets the assemblies and a program `run`, which runs an assembly with this
# runtime. LIBRARY is ortrain.dll, or libortrain.so for a runtime for Linux. RunTests.cs describes TEXT.
set -euo pipefail
python=$1 folder=$(realpath "$2") library=$(realpath "$3")
shift 3
cd "$(dirname "$0")/../.."
out=$folder/csharp
rm -rf "$out" && mkdir -p "$out"
"$python" tests/csharp/prepare.py "$folder/data"
framework=$(find /usr/lib/cli /usr/lib/mono -name nunit.framework.dll 2>/dev/null | head -n 1)
[ -n "$framework" ] || { echo "NUnit is missing; apt-get install libnunit-framework2.6.3-cil" >&2; exit 1; }
cp "$framework" "$library" tests/dotnet/runtimeconfig.json "$out"
compile=(scripts/dotnet_mcs.sh "$folder")
"${compile[@]}" -target:library -keyfile:bindings/csharp/ortrain.snk -out:"$out/Microsoft.ML.OnnxRuntime.dll" -recurse:'bindings/csharp/src/*.cs'
"${compile[@]}" -target:library -out:"$out/Tests.dll" -r:"$out/Microsoft.ML.OnnxRuntime.dll" -r:"$framework" tests/csharp/*.cs
"${compile[@]}" -out:"$out/RunTests.dll" -r:"$framework" tests/dotnet/RunTests.cs

dotnet=$(echo "$folder"/dotnetcore2/bin/dotnet*)
case $dotnet in *.exe) dotnet="wine $dotnet" ;; esac
printf '#!/bin/sh\nexec %s exec --runtimeconfig %s/runtimeconfig.json "$@"\n' "$dotnet" "$out" >"$folder/run"
chmod +x "$folder/run"
export ORTRAIN_TEST_DATA="$folder/data"
export ORTRAIN_API_INVENTORY="$PWD/tests/csharp/api_inventory.txt"
export ORTRAIN_REFERENCE_MEMBERS="$PWD/tests/data/csharp_members.txt"
export ORTRAIN_ABSENT_MEMBERS="$PWD/tests/csharp/absent_members.txt"
exec "$folder/run" "$out/RunTests.dll" "$@"
