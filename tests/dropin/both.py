"""C programs that run on libortrain and on onnxruntime, compiled against headers written from the recorded slots alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from languages import ROOT, WARNINGS, Missing, call_compiler, library_folder, skip_or_fail, tool

sys.path.append(str(ROOT / "tests/abi"))

import layout

HERE = Path(__file__).parent


def onnxruntime_library() -> Path:
    """The library in the installed onnxruntime, which is the oracle."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="it is the oracle")
    found = sorted((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    if not found:
        pytest.skip("the installed onnxruntime does not contain a library")
    return found[0]


def compile_program(folder: Path, source: str, name: str, options: Sequence[str] = ()) -> Path:
    """Compile a source of this folder; it opens the library that it runs on by itself."""
    (folder / "layout.h").write_text(layout.header())
    target = folder / name
    try:
        compiler = tool(os.environ.get("CC", "cc"), "gcc")
    except Missing as why:
        skip_or_fail("c", why)
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O1", *WARNINGS, f"-I{folder}", f"-I{HERE}"]
    call_compiler([compiler, *flags, HERE / source, *options, "-ldl", "-o", target])
    return target


def run(program: Path, library: Path, *arguments: str | Path) -> list[str]:
    """What a program prints on a library."""
    ran = subprocess.run(
        [program, library, *arguments], capture_output=True, encoding="utf-8", timeout=300, check=False
    )
    assert ran.returncode == 0, f"{library}: {ran.returncode}\n{ran.stdout[-3000:]}{ran.stderr[-3000:]}"
    return ran.stdout.splitlines()


def run_on_both(program: Path, *arguments: str | Path) -> list[str]:
    """What it prints on libortrain, which has to be what it prints on onnxruntime."""
    here = run(program, library_folder() / "libortrain.so", *arguments)
    assert here == run(program, onnxruntime_library(), *arguments)
    return here


def errors(program: Path, library: Path, *arguments: str | Path) -> list[str]:
    """The messages of the calls that fail."""
    ran = subprocess.run(
        [program, library, *arguments],
        env={**os.environ, "SAY": "1"},
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=True,
    )
    return ran.stderr.splitlines()
