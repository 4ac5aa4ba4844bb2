#!/usr/bin/env bash
# Compiles C# for .NET with Mono's compiler and the assemblies of the runtime that dotnet_runtime.sh unpacked into a folder.
# Usage: scripts/dotnet_mcs.sh FOLDER OPTION...
set -euo pipefail
assemblies=$(echo "$1"/dotnetcore2/bin/shared/Microsoft.NETCore.App/*)
shift
# Warning 1702: the runtime has assemblies that were compiled against earlier versions of its other assemblies.
options=(-nologo -nostdlib -noconfig -langversion:7.2 -unsafe -optimize -debug -warn:4 -warnaserror -nowarn:1702)
for assembly in "$assemblies"/{System*,mscorlib,netstandard}.dll; do options+=("-r:$assembly"); done
exec mcs "${options[@]}" "$@"
