"""scripts/core_coverage.py finds which lines tests run, and which cases run nothing that others do not."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from scripts import core_coverage
from scripts.core_coverage import Test as Record

ROOT = Path(__file__).resolve().parents[2]
CLANG = next((found for n in (19, 18, 17, 16) if (found := shutil.which(f"clang++-{n}"))), None)
SOURCE = """
volatile int small, middle, large;
extern "C" int size_of(int x) {
  if (x > 100) {
    large = x;
    return 3;
  }
  if (x > 10) {
    middle = x;
    return 2;
  }
  small = x;
  return 1;
}
"""
CASES = """
import ctypes, os, pathlib, subprocess, sys
import pytest
library = ctypes.CDLL({library!r})

@pytest.mark.parametrize("x", [5, 6, 50])
def test_small(x):
    assert library.size_of(x) == (1 if x < 11 else 2)

def test_in_another_process():
    program = "import ctypes; ctypes.CDLL({library!r}).size_of(500)"
    subprocess.run([sys.executable, "-c", program], check=True)

def test_nothing():
    pass
"""


def bits(*blocks: int) -> bytes:
    flags = np.zeros(24, np.uint8)
    flags[list(blocks)] = 1
    return zlib.compress(np.packbits(flags, bitorder="little").tobytes())


def names(tests: list[Record]) -> list[str]:
    return [test.name for test in tests]


def test_the_cases_that_are_kept_run_all_blocks_in_little_time() -> None:
    none = np.zeros(3, np.uint8)
    tests = [
        Record("large", 9.0, bits(0, 1, 2, 3)),
        Record("left", 1.0, bits(0, 1, 2)),
        Record("right", 1.0, bits(0, 3)),
        Record("again", 1.5, bits(0, 3)),
    ]
    assert names(core_coverage.kept(tests, none)) == ["left", "right"]
    assert names(core_coverage.kept([*tests, Record("other", 50.0, bits(20))], none)) == [
        "left",
        "right",
        "other",
    ]
    ignored = np.packbits(np.arange(24) == 20, bitorder="little")
    assert names(core_coverage.kept([*tests, Record("other", 50.0, bits(0, 20))], ignored)) == [
        "left",
        "right",
    ]
    same = [Record("slow", 2.0, bits(4)), Record("fast", 1.0, bits(4))]
    assert names(core_coverage.kept(same, none)) == ["fast"]


@pytest.mark.skipif(not (CLANG and shutil.which("llvm-dwarfdump")), reason="needs clang and llvm-dwarfdump")
def test_lines_are_those_that_a_test_and_its_processes_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "core/src/sizes/sizes.cpp"
    source.parent.mkdir(parents=True)
    source.write_text(SOURCE)
    (tmp_path / "ortrain/lib").mkdir(parents=True)
    (tmp_path / "ortrain/__init__.py").touch()
    library = tmp_path / "ortrain/lib/libortrain.so"
    options = ["-g1", "-O0", "-fPIC", "-c", "-std=c++20"]
    blocks = "-fsanitize-coverage=edge,inline-bool-flag,pc-table,no-prune"
    objects = [tmp_path / "sizes.o", tmp_path / "blocks.o"]
    assert CLANG
    subprocess.run([CLANG, *options, blocks, source, "-o", objects[0]], check=True)
    subprocess.run([CLANG, *options, ROOT / "tests/coverage/blocks.cpp", "-o", objects[1]], check=True)
    subprocess.run([CLANG, "-shared", *objects, "-o", library], check=True)
    (tmp_path / "test_cases.py").write_text(CASES.format(library=str(library)))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    record = tmp_path / "record.sqlite"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "coverage_by_test"]
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT / 'tests'}")
    ran = subprocess.run(
        [*command, f"--record-coverage={record}", "test_cases.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(sqlite3.connect(record).execute("SELECT * FROM tests").fetchall()) == 6

    without = tmp_path / "without.txt"
    without.write_text("test_cases.py::test_in_another_process\n")
    monkeypatch.setattr(
        sys, "argv", ["core_coverage", str(record), "--without", str(without), "--redundant", "--costs"]
    )
    assert core_coverage.main() == 0
    printed = capsys.readouterr().out
    assert "6 tests: " in printed
    assert "100.00%" in printed
    assert "no longer covered: sizes/sizes.cpp:5" in printed
    assert "in 1 of 3 cases: test_cases.py::test_small" in printed
    assert "[50]" not in printed
