"""Providers, devices, arenas, allocators, threads and loggers answer as in onnxruntime."""

from __future__ import annotations

from pathlib import Path

import both
from languages import ROOT, library_folder

MODEL = ROOT / "tests/data/fixtures/mlp_adamw/exported_after.onnx"


def test_settings_are_taken_and_refused_as_in_onnxruntime(tmp_path: Path) -> None:
    printed = both.run_on_both(both.compile_program(tmp_path, "settings.c", "settings"), MODEL)
    assert "verbose messages: 1" in printed
    assert "messages of the session's own logger: 1" in printed


def test_a_provider_that_is_missing_is_refused_with_the_names_of_those_that_are_there(tmp_path: Path) -> None:
    program = both.compile_program(tmp_path, "settings.c", "settings")
    said = both.errors(program, library_folder() / "libortrain.so", MODEL)
    refusals = [line for line in said if "execution provider is not enabled" in line]
    assert len(refusals) >= 29
    assert all("available: CPUExecutionProvider" in line for line in refusals)
