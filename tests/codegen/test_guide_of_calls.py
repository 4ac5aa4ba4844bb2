"""docs/adding-a-call.md, followed on a copy: the entry that it shows, under another name, is the only work but for its body."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from spec_copy import ROOT, SpecCopy

from codegen.spec.check import load

pytestmark = pytest.mark.thorough

GUIDE = (ROOT / "docs/adding-a-call.md").read_text(encoding="utf-8")
CALL = "checkpoint_get_optimizer_step_count"
BODY = """
void CheckpointCountOptimizerSteps(const OrtCheckpointState* checkpoint_state, int64_t* out) {
  CheckpointGetOptimizerStepCount(checkpoint_state, out);
}
"""


def run(root: pathlib.Path, *arguments: str) -> str:
    """Run Python in the copy; returns what it printed."""
    ran = subprocess.run([sys.executable, *arguments], cwd=root, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def contents(root: pathlib.Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not {"__pycache__", ".pytest_cache"} & set(path.parts)
    }


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A checkout with what the guide changes and runs."""
    root = tmp_path_factory.mktemp("checkout")
    for folder in ("codegen", "spec", "core/src", "tests/abi"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "tests/data/fixtures").mkdir(parents=True)
    names = ["pyproject.toml", "tests/data/OrtrainApi.csv"]
    for name in [*names, *(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").glob("*.py"))]:
        shutil.copy(ROOT / name, root / name)
    run(root, "-m", "codegen")
    return root


def test_the_steps_of_the_guide_are_all_that_a_call_needs(copy: pathlib.Path) -> None:
    before = contents(copy)
    spec = SpecCopy(copy / "spec")
    loaded = load(spec.folder)
    slots = next(table["slots"] for table in loaded.tables if table["name"] == "extension")
    text = (spec.folder / "library.yaml").read_text(encoding="utf-8")
    [version] = re.findall(r"^  extension_version: (\d+)$", text, re.MULTILINE)
    following = int(version) + 1

    [entry] = re.findall(rf"^```yaml\n(  - name: {CALL}\n.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    entry = entry.replace(CALL, "checkpoint_count_optimizer_steps")
    entry = re.sub(r"slot: \d+", f"slot: {slots}\n    since: {following}", entry)
    spec.append("extensions.yaml", "\n" + entry)
    spec.replace(
        "library.yaml", f"- name: extension\n    slots: {slots}", f"- name: extension\n    slots: {slots + 1}"
    )
    spec.replace(
        "library.yaml",
        f"extension_version: {version}\n  summary",
        f"extension_version: {following}\n  summary",
    )

    generated = set(run(copy, "-m", "codegen").split())
    source = copy / "core/src/capi/checkpoint.cpp"
    where = "void CreateCheckpoint("
    body = source.read_text(encoding="utf-8")
    source.write_text(body.replace(where, BODY.lstrip() + "\n" + where, 1), encoding="utf-8")
    [recording] = re.findall(r"-m pytest tests/abi/test_own_table\.py --[a-z-]+", " ".join(GUIDE.split()))
    run(copy, *recording.split(), "-k", "recorded_call_is_where")
    run(copy, "-m", "codegen", "--check")

    after = contents(copy)
    by_hand = {name for name, text in after.items() if before.get(name) != text} - generated
    table = GUIDE.split("| place |")[1].split("\n\n")[0]
    always = [row for row in table.splitlines() if row.startswith("| `") and "only for" not in row]
    assert by_hand == {row.split("`")[1].replace("<subject>", "checkpoint") for row in always}
    assert after["tests/data/OrtrainApi.csv"].startswith(before["tests/data/OrtrainApi.csv"])
    assert b"CheckpointCountOptimizerSteps" in after["tests/data/OrtrainApi.csv"]
    for page in ("csharp/src/generated/CheckpointState.cs", "objc/include/generated/ort_checkpoint.h"):
        assert f"bindings/{page}" in generated

    includes = [f"-I{copy}/core/include", f"-I{copy}/core/src"]
    command = ["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", *includes, str(source)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
