"""docs/tutorial-migration.md: the programs written for onnxruntime-training run as the page says, and learn."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as Xml

import numpy as np
import onnxruntime
import pytest
from languages import COMPILERS, ROOT, Missing, skip_or_fail
from ortrain import artifacts

TEXT = (ROOT / "docs/tutorial-migration.md").read_text("utf-8")
CSHARP = ROOT / "bindings/csharp"


def block(mark: str) -> str:
    (text,) = re.findall(rf"^```{mark}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    return text


def changed(source: str, diff: str) -> str:
    """Apply the lines of a diff without context."""
    removed = [line[1:] for line in diff.splitlines() if line.startswith("-")]
    added = [line[1:] for line in diff.splitlines() if line.startswith("+")]
    assert len(removed) == len(added)
    for old, new in zip(removed, added, strict=True):
        assert source.count(old + "\n") == 1
        source = source.replace(old + "\n", new + "\n")
    return source


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with the model and data that there is something to learn from."""
    (tmp_path / "model.onnx").write_bytes((ROOT / "tests/data/fixtures/mlp_adamw/model.onnx").read_bytes())
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 320)
    images = rng.normal(size=(320, 64)).astype(np.float32)
    for group in range(6):
        images[:, group::10] += 2.0 * (labels == group)[:, None]
    np.savez(tmp_path / "train.npz", input=images, labels=labels)
    images.tofile(tmp_path / "images.bin")
    labels.tofile(tmp_path / "labels.bin")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def losses(printed: str) -> list[float]:
    found = [float(value) for value in re.findall(r"^epoch \d: ([\d.]+)$", printed, re.MULTILINE)]
    assert len(found) == 5, printed
    assert found[-1] < 0.8 * found[0]
    return found


def accuracy(folder) -> float:
    with np.load(folder / "train.npz") as data:
        (scores,) = onnxruntime.InferenceSession(folder / "trained.onnx").run(
            ["output"], {"input": data["input"]}
        )
        return float((scores.argmax(axis=1) == data["labels"]).mean())


def test_the_python_program_prints_the_same_before_and_after(workplace):
    before = block("python before")
    after = changed(before, next(re.finditer(r"^```diff\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))[1])
    assert "onnxruntime" not in after
    printed = []
    for name, source, options in [
        ("before.py", before, ["-m", "ortrain.compat"]),
        ("after.py", after, []),
    ]:
        (workplace / name).write_text(source, "utf-8")
        ran = subprocess.run([sys.executable, *options, name], capture_output=True, text=True, timeout=300)
        assert ran.returncode == 0, ran.stderr
        printed.append(losses(ran.stdout))
        assert accuracy(workplace) > 0.5
        (workplace / "trained.onnx").unlink()
    assert printed[0] == printed[1]


def test_the_csharp_program_runs_unchanged(workplace):
    (workplace / "Program.cs").write_text(block("csharp moved"), "utf-8")
    try:
        program = COMPILERS["csharp"][1]([workplace / "Program.cs"], workplace / "program")
    except Missing as why:
        skip_or_fail("csharp", why)
    artifacts.generate_artifacts(
        "model.onnx",
        requires_grad=["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory="artifacts",
    )
    ran = program.run([], cwd=workplace)
    assert ran.returncode == 0, ran.stderr
    losses(ran.stdout)
    assert accuracy(workplace) > 0.5


def test_the_package_of_the_page_is_the_one_that_is_packed():
    (name, version) = re.findall(
        r'^\+<PackageReference Include="(.*?)" Version="(.*?)" />', TEXT, re.MULTILINE
    )[0]
    assert name == Xml.parse(CSHARP / "Microsoft.ML.OnnxRuntime.csproj").find(".//PackageId").text
    assert version == Xml.parse(CSHARP / "src/generated/Version.props").find(".//Version").text
