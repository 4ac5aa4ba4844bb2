"""The headers compile as C++14, with both compilers, and their 16-bit floats agree with NumPy and ml_dtypes."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from languages import ROOT, WARNINGS, Missing, Program, call_compiler, library_folder, link_options, tool

HEADERS = sorted(path.name for path in (ROOT / "core/include").glob("*.h"))
C_HEADERS = [name for name in HEADERS if "cxx" not in name and "float16" not in name]
COMPILERS = {"g++": "g++", "clang++": "clang"}


def compiler(name: str) -> str:
    try:
        return tool(name, COMPILERS[name])
    except Missing as why:
        pytest.skip(str(why))


def check_sources(command: list[str], texts: list[str], folder: Path) -> None:
    """Compile sources with these texts, without code generation."""
    sources = []
    for number, text in enumerate(texts):
        sources.append(folder / f"{number}.cpp")
        sources[-1].write_text(text)
    options = [*WARNINGS, "-fsyntax-only", f"-I{ROOT / 'core/include'}"]
    call_compiler([*command, *options, *sources])


def test_every_header_compiles_alone(tmp_path: Path) -> None:
    check_sources([compiler("g++"), "-std=c++14"], [f'#include "{header}"\n' for header in HEADERS], tmp_path)


@pytest.mark.first_case
@pytest.mark.parametrize("name", COMPILERS)
@pytest.mark.parametrize("standard", ["c++14", "c++17", "c++20"])
def test_the_headers_compile_together(name: str, standard: str, tmp_path: Path) -> None:
    together = "".join(f'#include "{header}"\n' for header in HEADERS)
    check_sources([compiler(name), f"-std={standard}"], [together], tmp_path)


def test_every_c_header_compiles_as_c(tmp_path: Path) -> None:
    source = tmp_path / "all.c"
    source.write_text("".join(f'#include "{header}"\n' for header in C_HEADERS))
    options = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    call_compiler([tool("gcc", "gcc"), *options, f"-I{ROOT / 'core/include'}", source])


def write_numbers(path: Path, dtype: type, rng: np.random.Generator) -> None:
    """Every value of a format as a float, then floats with their bits in the format: random ones, and ties."""
    with np.errstate(all="ignore"):
        every = np.arange(65536, dtype=np.uint16).view(dtype).astype(np.float32)
        at_random = rng.integers(0, 2**32, 20000, dtype=np.uint64).astype(np.uint32).view(np.float32)
        finite = np.sort(every[np.isfinite(every)].astype(np.float64))
        ties = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)
        values = np.concatenate([at_random, ties, np.nextafter(ties, np.inf), np.nextafter(ties, -np.inf)])
        values = values.astype(np.float32)
        bits = values.astype(dtype).view(np.uint16).astype(np.uint32)
    path.write_bytes(every.tobytes() + np.stack([values.view(np.uint32), bits], axis=1).tobytes())


@pytest.mark.first_case
@pytest.mark.parametrize("name", COMPILERS)
@pytest.mark.parametrize("standard", ["c++14", "c++17"])
def test_what_the_headers_define_works(name: str, standard: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    write_numbers(tmp_path / "float16", np.float16, rng)
    write_numbers(tmp_path / "bfloat16", ml_dtypes.bfloat16, rng)
    program = tmp_path / "headers"
    options = [f"-std={standard}", "-O1", *WARNINGS, f"-I{ROOT / 'core/include'}"]
    source = Path(__file__).parent / "headers.cpp"
    call_compiler([compiler(name), *options, source, *link_options(library_folder()), "-o", program])
    fixture = ROOT / "tests/data/fixtures/mlp_adamw"
    ran = Program([str(program)]).run([fixture, tmp_path / "float16", tmp_path / "bfloat16"])
    assert ran.returncode == 0, ran.stdout + ran.stderr
