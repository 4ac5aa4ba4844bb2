"""A new language is a folder, a spec file and a small library: the language in the guide is generated and used."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from languages import library_folder
from spec_copy import ROOT

from codegen.spec.check import load

pytestmark = pytest.mark.thorough

ortrain = pytest.importorskip("ortrain", reason="the package is not installed; make install")

GUIDE = ROOT / "docs/adding-a-language.md"
CHECKPOINT = ROOT / "tests/data/fixtures/mlp_adamw/checkpoint"


def files_of_the_guide() -> dict[str, str]:
    """The files that the guide shows, by path."""
    text = GUIDE.read_text(encoding="utf-8")
    return dict(re.findall(r"^```\w+ (\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


def generate(root: pathlib.Path) -> set[str]:
    """Run the generator of a copy; returns the files that it wrote."""
    command = [sys.executable, "-m", "codegen"]
    ran = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return set(ran.stdout.split())


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The generator and the spec, with the language of the guide."""
    root = tmp_path_factory.mktemp("checkout")
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("codegen", "spec"):
        shutil.copytree(ROOT / folder, root / folder, ignore=ignored)
    generate(root)
    slots = {name: str(call.slot) for name, call in load(root / "spec").calls.items()}
    for path, text in files_of_the_guide().items():
        for word, call in (
            ("GET_TRAINING_API", "get_training_api"),
            ("GET_ALLOCATOR", "get_allocator_with_default_options"),
            ("ALLOCATOR_FREE", "allocator_free"),
        ):
            text = re.sub(rf"\[{word}\]", f"[{slots[call]}]", text)
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return root


def test_the_language_gets_its_files_and_changes_only_the_page_of_all_languages(copy: pathlib.Path) -> None:
    assert generate(copy) == {
        "bindings/ctypes/generated/checkpoint_state.py",
        "bindings/ctypes/generated/value.py",
        "docs/reference/languages.md",
    }
    page = (copy / "docs/reference/languages.md").read_text(encoding="utf-8")
    assert "Python with ctypes" in page
    assert "`Checkpoint.parameter_names`" in page


USE = """
from bindings.ctypes import library
from bindings.ctypes.generated.checkpoint_state import Checkpoint

state = Checkpoint.load({checkpoint!r})
print(*state.parameter_names())
first = state.get_parameter(state.parameter_names()[0])
print(first.is_tensor(), first.get_tensor_size_in_bytes())
state.update_parameter(state.parameter_names()[0], first)
Checkpoint.save(state, {saved!r}, True)
try:
    state.get_parameter("nowhere")
except library.Error as error:
    print(error)
"""


def test_the_generated_classes_work_on_a_real_checkpoint(copy: pathlib.Path, tmp_path: pathlib.Path) -> None:
    generate(copy)
    program = USE.format(checkpoint=str(CHECKPOINT), saved=str(tmp_path / "saved"))
    environment = {**os.environ, "ORTRAIN_LIBRARY": str(library_folder() / "libortrain.so")}
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    names, described, rejected = ran.stdout.splitlines()
    state = ortrain.api.CheckpointState.load_checkpoint(CHECKPOINT)
    expected = [name for name, _ in state.parameters]
    assert names.split() == expected
    values = state.parameters[expected[0]].data
    assert described == f"1 {values.nbytes}"
    assert rejected.startswith("GetParameter: ")
    assert "nowhere" in rejected
    again = ortrain.api.CheckpointState.load_checkpoint(tmp_path / "saved")
    assert [name for name, _ in again.parameters] == expected


def test_a_method_whose_steps_the_language_cannot_print_is_named(
    copy: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    root = tmp_path / "copy"
    shutil.copytree(copy, root)
    path = root / "spec/languages/ctypes.yaml"
    path.write_text(
        path.read_text() + "    type_info:\n      methods:\n        get_valu_type:\n", encoding="utf-8"
    )
    command = [sys.executable, "-m", "codegen"]
    ran = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert "language ctypes, class type_info, method get_valu_type" in ran.stderr
    assert "did you mean 'get_value_type'?" in ran.stderr
