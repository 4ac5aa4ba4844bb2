"""How a program in each language is compiled against the library under test, and run.

If the compiler or the built library of a language is missing, `Missing` is raised, which says what to do about it.

Two environment variables select other compilers. With ORTRAIN_WINDOWS, the build folder of ortrain.dll, programs in C, C++ and C#
are compiled for Windows and run in Wine. With ORTRAIN_DOTNET, a folder that tests/dotnet/run.sh filled, C# runs on .NET.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent
WINDOWS = Path(os.environ["ORTRAIN_WINDOWS"]).resolve() if "ORTRAIN_WINDOWS" in os.environ else None
DOTNET = Path(os.environ["ORTRAIN_DOTNET"]).resolve() if "ORTRAIN_DOTNET" in os.environ else None
WARNINGS = ["-Wall", "-Wextra", "-Werror"]


class Missing(Exception):
    """A language cannot be used here; the message says what is missing."""


@dataclass(frozen=True)
class Program:
    """A program that is ready to run: the command without its arguments, and the environment that it needs."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)

    def run(
        self, arguments: Sequence[str | Path], cwd: Path | None = None, timeout: float = 600
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end; stdout and stderr are kept as UTF-8 text."""
        return subprocess.run(
            [*self.command, *map(str, arguments)],
            cwd=cwd,
            env={**os.environ, **self.environment},
            capture_output=True,
            encoding="utf-8",
            timeout=timeout,
        )


def library_folder() -> Path:
    """The folder of the libortrain under test."""
    if "ORTRAIN_EXTENSION_DIR" in os.environ:
        return Path(os.environ["ORTRAIN_EXTENSION_DIR"]).resolve()
    package = find_spec("ortrain")
    if package is None or not package.submodule_search_locations:
        raise Missing("the package ortrain is not installed: make install")
    return Path(package.submodule_search_locations[0]) / "lib"


def tool(name: str, package: str) -> str:
    """The path of a compiler or the like."""
    found = shutil.which(name)
    if found is None:
        raise Missing(f"there is no {name}: apt-get install {package}")
    return found


def built(path: str, target: str) -> Path:
    """The path of a library that another target of the Makefile builds."""
    if not (ROOT / path).exists():
        raise Missing(f"there is no {path}: make {target}")
    return ROOT / path


def call_compiler(command: Sequence[str | Path]) -> None:
    ran = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert ran.returncode == 0, f"{shlex.join(map(str, command))}\n{ran.stdout}{ran.stderr}"


def link_options(library: Path) -> list[str]:
    return [f"-L{library}", "-lortrain", f"-Wl,-rpath,{library}", f"-Wl,-rpath-link,{library}"]


def answer(program: str, question: str) -> str:
    """The output of a tool."""
    return subprocess.run([program, question], capture_output=True, text=True, check=True).stdout.strip()


def compile_c(sources: Sequence[Path], target: Path) -> Program:
    return compile_c_against([ROOT / "core/include"], sources, target)


def compile_c_against(
    headers: Sequence[Path], sources: Sequence[Path], target: Path, link: Sequence[str] | None = None
) -> Program:
    """Compile with the test's own headers, linked with libortrain or as given by `link`."""
    compiler = tool(os.environ.get("CC", "cc"), "gcc")
    options = ["-std=c11", "-O2", *WARNINGS, *(f"-I{folder}" for folder in headers)]
    link = link_options(library_folder()) if link is None else link
    call_compiler([compiler, *options, *sources, *link, "-o", target])
    return Program([str(target)])


def compile_cpp(sources: Sequence[Path], target: Path) -> Program:
    compiler = tool(os.environ.get("CXX", "c++"), "g++")
    options = ["-std=c++17", "-O2", *WARNINGS, f"-I{ROOT / 'core/include'}"]
    call_compiler([compiler, *options, *sources, *link_options(library_folder()), "-o", target])
    return Program([str(target)])


def compile_csharp(sources: Sequence[Path], target: Path) -> Program:
    compiler, runtime = tool("mcs", "mono-mcs"), tool("mono", "mono-runtime")
    assembly = built("build/csharp/Microsoft.ML.OnnxRuntime.dll", "csharp")
    program = target.with_suffix(".exe")
    call_compiler([compiler, "-warnaserror", f"-r:{assembly}", f"-out:{program}", *sources])
    return Program(
        [runtime, str(program)],
        {"MONO_PATH": str(assembly.parent), "LD_LIBRARY_PATH": str(library_folder())},
    )


def compile_for_dotnet(sources: Sequence[Path], target: Path) -> Program:
    assert DOTNET is not None
    folder = target.parent / f"{target.name}_dotnet"  # with all that the program loads
    shutil.copytree(DOTNET / "csharp", folder)
    compile_script = [ROOT / "scripts/dotnet_mcs.sh", DOTNET]
    assembly, program = folder / "Microsoft.ML.OnnxRuntime.dll", folder / "Program.dll"
    call_compiler([*compile_script, f"-r:{assembly}", f"-out:{program}", *sources])
    # .NET collects garbage when it has the size of the processor's cache, which hides leaks; here at 1 MiB (in hexadecimal).
    return Program([str(DOTNET / "run"), str(program)], {"COMPlus_GCgen0size": "100000"})


def compile_for_windows(options: Sequence[str], sources: Sequence[Path], target: Path) -> Program:
    assert WINDOWS is not None
    compiler = WINDOWS.parent / "zig/bin/clang++-x86_64-windows-gnu"
    headers = [*WARNINGS, f"-I{ROOT / 'core/include'}"]
    program = target.with_suffix(".exe")
    call_compiler(
        [compiler, *options, *headers, *sources, "-x", "none", WINDOWS / "ortrain.lib", "-o", program]
    )
    shutil.copy(WINDOWS / "ortrain.dll", target.parent)
    return Program([tool("wine", "wine"), str(program)])


def compile_c_for_windows(sources: Sequence[Path], target: Path) -> Program:
    return compile_for_windows(["-x", "c", "-std=c11", "-O2"], sources, target)


def compile_cpp_for_windows(sources: Sequence[Path], target: Path) -> Program:
    return compile_for_windows(["-std=c++17", "-O2"], sources, target)


def objc_options(counted: bool = False) -> list[str]:
    """The compiler options of an Objective-C source, with or without automatic reference counting.

    The runtime and its headers are GCC's; they come last, so that clang finds its own headers first. Clang supports
    reference counting only with another runtime, which is not available for linking.
    """
    config, gcc = tool("gnustep-config", "libgnustep-base-dev"), tool("gcc", "gobjc")
    runtime = ["-fobjc-runtime=gcc", "-DGNU_RUNTIME=1"]
    if counted:
        without_looks = built("build/objc/counted/objc/runtime.h", "objc").parents[1]
        runtime = ["-fobjc-arc", "-fobjc-runtime=gnustep-2.0", "-fno-blocks", "-isystem", str(without_looks)]
    headers = ["-isystem", answer(config, "--variable=GNUSTEP_SYSTEM_HEADERS")]
    headers += ["-idirafter", answer(gcc, "-print-file-name=include")]
    defined = ["-DGNUSTEP", "-DGNUSTEP_BASE_LIBRARY=1", "-D_NATIVE_OBJC_EXCEPTIONS"]
    language = ["-fexceptions", "-fobjc-exceptions", "-fconstant-string-class=NSConstantString", "-pthread"]
    return [*runtime, *headers, *defined, *language, *WARNINGS]


def compile_objc(sources: Sequence[Path], target: Path) -> Program:
    compiler = tool("clang", "clang")
    binding = built("build/objc/libonnxruntime_training_objc.so", "objc").parent
    libraries = [f"-L{binding}", "-lonnxruntime_training_objc", f"-Wl,-rpath,{binding}"]
    libraries += [*link_options(library_folder()), "-lgnustep-base", "-lm"]
    libraries += [answer(tool("gcc", "gobjc"), "-print-file-name=libobjc.so")]
    options = ["-O2", *objc_options(), f"-I{binding / 'include'}"]
    call_compiler([compiler, *options, *sources, *libraries, "-o", target])
    return Program([str(target)])


def swift_module() -> tuple[list[str | Path], dict[str, str]]:
    """The command that compiles and links a source with the module, and the environment that its programs need."""
    modules = built("build/swift/release/Modules/onnxruntime_training_objc.swiftmodule", "swift").parent
    objects = sorted((modules.parent / "onnxruntime_training_objc.build").glob("*.o"))
    binding = ROOT / "bindings/swift/Sources/COrtrain"
    options: list[str | Path] = ["-swift-version", "6", "-warnings-as-errors", "-I", modules, "-I", binding]
    options += ["-Xcc", f"-I{ROOT / 'core/include'}", *objects, f"-L{library_folder()}"]
    return options, {"LD_LIBRARY_PATH": str(library_folder())}


def compile_swift(sources: Sequence[Path], target: Path) -> Program:
    compiler = tool("swiftc", "swiftlang, or the toolchain of swift.org")
    options, environment = swift_module()
    call_compiler([compiler, "-O", "-parse-as-library", *options, *sources, "-o", target])
    return Program([str(target)], environment)


COMPILERS: dict[str, tuple[str, Callable[[Sequence[Path], Path], Program]]] = {
    "c": (".c", compile_c),
    "cpp": (".cpp", compile_cpp),
    "csharp": (".cs", compile_csharp),
    "objc": (".m", compile_objc),
    "swift": (".swift", compile_swift),
}
"""By language: the suffix of its sources, and the function that compiles sources into a program."""

if DOTNET is not None:
    COMPILERS["csharp"] = (".cs", compile_for_dotnet)
if WINDOWS is not None:
    COMPILERS = {
        "c": (".c", compile_c_for_windows),
        "cpp": (".cpp", compile_cpp_for_windows),
        "csharp": (".cs", compile_for_dotnet),
    }


def skip_or_fail(language: str, why: Missing) -> NoReturn:
    """End a test of a missing language: as skipped, or as failed if ORTRAIN_REQUIRE names the language."""
    if language in required():
        pytest.fail(f"{language} is required by ORTRAIN_REQUIRE, but {why}")
    pytest.skip(f"SKIPPED LOUDLY: {language}: {why}")


def required() -> set[str]:
    """The languages that must not be missing, from the environment: ORTRAIN_REQUIRE=c,cpp,csharp,objc,swift."""
    return {name for name in os.environ.get("ORTRAIN_REQUIRE", "").split(",") if name}
