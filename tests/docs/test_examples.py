"""The examples of README and docs do what they say, and links between the pages lead somewhere.

A fenced block that begins with ``python test`` is run; the blocks of a page share their names and a folder.
They find there ``model.onnx``, a network from 64 numbers to 10 classes, ``artifacts/`` made from it, and the
names ``batches`` (pairs of images and labels), ``images`` and ``labels`` (one of the pairs).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from os import environ
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from ortrain import artifacts

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python test\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def blocks_of(page: Path) -> list[tuple[int, str]]:
    """Line and source of every block that is to be run."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in BLOCK.finditer(text)]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with a model and its artifacts."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copy(ROOT / "tests/data/fixtures/mlp_adamw/model.onnx", folder / "model.onnx")
    artifacts.generate_artifacts(
        str(folder / "model.onnx"),
        requires_grad=["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder / "artifacts",
    )
    return folder


@pytest.fixture
def workplace(prepared, tmp_path, monkeypatch):
    """A copy of that folder as the present one."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def some_batches(count: int = 8, size: int = 16) -> list[tuple[np.ndarray, np.ndarray]]:
    """Images whose label is the group of numbers that is largest, so that there is something to learn."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, (count, size))
    images = rng.normal(size=(count, size, 64)).astype(np.float32)
    for group in range(6):
        images[..., group::10] += 2.0 * (labels == group)[..., None]
    return list(zip(images, labels, strict=True))


def test_readme_and_guides_have_examples_to_run():
    with_examples = {name_of(page) for page in PAGES if blocks_of(page)}
    assert {
        "README.md",
        "docs/getting-started.md",
        "docs/artifacts.md",
        "docs/training-loop.md",
        "docs/checkpoint-and-export.md",
        "docs/threads-and-determinism.md",
    } <= with_examples


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)], ids=name_of)
def test_python_examples_run(page, workplace):
    batches = some_batches()
    names = {"__name__": "example", "batches": batches, "images": batches[-1][0], "labels": batches[-1][1]}
    for line, source in blocks_of(page):
        # Blank lines in front give tracebacks the line of the page.
        exec(compile("\n" * (line - 1) + source, str(page), "exec"), names)
    if "trained.onnx" in page.read_text(encoding="utf-8"):
        (scores,) = onnxruntime.InferenceSession("trained.onnx").run(["output"], {"input": names["images"]})
        assert scores.shape == (16, 10)


def test_the_operator_test_of_the_guide_passes(tmp_path):
    guide = (ROOT / "docs/adding-an-operator.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"^```python pytest\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    (tmp_path / "test_guide.py").write_text(source, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_guide.py"],
        cwd=tmp_path,
        env={**environ, "PYTHONPATH": str(ROOT / "tests/ops")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout
    assert "9 passed" in ran.stdout


def test_the_spec_entry_of_the_guide_is_that_of_the_spec():
    guide = (ROOT / "docs/adding-a-call.md").read_text(encoding="utf-8")
    (entry,) = re.findall(r"^```yaml\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    assert entry in (ROOT / "spec/extensions.yaml").read_text(encoding="utf-8")


def library_folder() -> Path:
    """Where the libortrain under test lies."""
    if "ORTRAIN_EXTENSION_DIR" in environ:
        return Path(environ["ORTRAIN_EXTENSION_DIR"])
    package = find_spec("ortrain")
    assert package is not None
    assert package.submodule_search_locations
    return Path(package.submodule_search_locations[0]) / "lib"


def mean_loss(scores: np.ndarray, labels: np.ndarray) -> float:
    """Cross entropy, computed here in double."""
    wide = scores.astype(np.float64)
    log_sum = np.log(np.exp(wide - wide.max(axis=1, keepdims=True)).sum(axis=1)) + wide.max(axis=1)
    return float((log_sum - wide[np.arange(len(labels)), labels]).mean())


@pytest.mark.parametrize(
    ("source", "compiler"),
    [
        ("examples/c/train.c", ["cc", "-std=c11"]),
        ("examples/cpp/train.cpp", ["c++", "-std=c++17"]),
    ],
    ids=["c", "cpp"],
)
def test_c_and_cpp_examples_train(source, compiler, workplace):
    library = library_folder()
    command = [*compiler, "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'core/include'}", str(ROOT / source)]
    command += [
        f"-L{library}",
        "-lortrain",
        f"-Wl,-rpath,{library}",
        f"-Wl,-rpath-link,{library}",
        "-o",
        "train",
    ]
    subprocess.run(command, check=True)

    batches = some_batches(count=40)
    images = np.concatenate([images for images, _ in batches])
    labels = np.concatenate([labels for _, labels in batches])
    images.tofile("images.bin")
    labels.astype(np.int64).tofile("labels.bin")
    arguments = ["artifacts", "images.bin", "labels.bin", "trained.onnx", "output"]
    ran = subprocess.run(["./train", *arguments], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr

    losses = {}
    for model in ("model.onnx", "trained.onnx"):
        (scores,) = onnxruntime.InferenceSession(model).run(["output"], {"input": images})
        losses[model] = mean_loss(scores, labels)
    assert losses["trained.onnx"] < 0.5 * losses["model.onnx"]
    assert Path("trained.onnx.ckpt").stat().st_size > Path("artifacts/checkpoint").stat().st_size

    wrong = subprocess.run(
        ["./train", "nowhere", *arguments[1:]], capture_output=True, text=True, timeout=120
    )
    assert wrong.returncode == 1
    assert "nowhere/checkpoint" in wrong.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    missing = [
        link for link in LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()
    ]
    assert not missing
