"""The examples in the README and the docs work, and links between the pages are valid.

A fenced block that begins with ``python test`` is run; the blocks of a page share their names and a folder. The folder
contains ``model.onnx``, a network that maps 64 values to 10 classes, ``artifacts/`` created from it, and
``mobilenet_v2.onnx``, for images of 16 by 16 pixels; the names ``batches`` (pairs of images and labels), ``images`` and
``labels`` (one of the pairs) are defined.

A block that begins with ``c test``, ``cpp test``, ``csharp test``, ``objc test`` or ``swift test`` is a whole program. It
is compiled unchanged, together with a function that supplies batches: ``bool next_batch(float* images, int64_t* labels)``,
in C# ``bool Data.NextBatch(float[] images, long[] labels)``, which fills 16 images and labels and returns false after the
last batch, in Swift ``nextBatch() -> (images: [Float], labels: [Int64])?``. It is run in a folder with ``artifacts/`` and
must write ``trained.onnx`` and ``trained.ckpt`` there.

Blocks and programs run twice: with artifacts of ``generate_artifacts`` and with those of ``ortrain artifacts``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from os import environ, pathsep
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from languages import COMPILERS, ROOT, Missing, skip_or_fail
from onnx import TensorProto, helper, numpy_helper
from ortrain import Trainer, artifacts, onnxblock
from ortrain.cli import main

from codegen.render import render_pages
from codegen.spec.check import load
from codegen.write import write_pages
from docs import operator_pages

HERE = Path(__file__).resolve().parent
REFERENCE = ROOT / "docs/reference"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs/reference").glob("*.md")),
    *sorted((ROOT / "bindings").glob("*/README.md")),
]
BLOCK = re.compile(r"^```python test\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"^```(c|cpp|csharp|objc|swift) test\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def blocks_of(page: Path) -> list[tuple[int, str]]:
    """Line and source of every block to run."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in BLOCK.finditer(text)]


def programs_of(page: Path) -> list[tuple[int, str, str]]:
    """Line, language and source of every block that is a program."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, match.start(1)) + 1, match[1], match[2]) for match in PROGRAM.finditer(text)]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with a model and its artifacts."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copy(ROOT / "tests/data/fixtures/mlp_adamw/model.onnx", folder / "model.onnx")
    shutil.copy(ROOT / "tests/models/data/mobilenet_v2/torchscript_17.onnx", folder / "mobilenet_v2.onnx")
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
    """A copy of that folder as the current directory."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def of_the_command(prepared, tmp_path_factory):
    """Artifacts of the same model from the command line."""
    folder = tmp_path_factory.mktemp("command") / "artifacts"
    model = prepared / "model.onnx"
    assert main(["artifacts", str(model), "--loss", "cross_entropy", "--out", str(folder)]) == 0
    return folder


def some_batches(count: int = 8, size: int = 16) -> list[tuple[np.ndarray, np.ndarray]]:
    """Images whose label is the group with the largest values, so that there is something to learn."""
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
        "docs/index.md",
        "docs/getting-started.md",
        "docs/artifacts.md",
        "docs/training-loop.md",
        "docs/checkpoint-and-export.md",
        "docs/threads-and-determinism.md",
    } <= with_examples


NOT_RUN = {
    "generate_artifacts(\n": "the arguments, one a line",
    "lora = artifacts.read_peft": "tests/artifacts/test_adapters.py reads and writes files of PEFT",
    'artifacts.generate_artifacts("fixed.onnx"': "tests/artifacts/test_dynamic_batch.py",
    'artifacts.generate_artifacts("model.onnx", loss={"logits"': "tests/session/test_loss_blocks.py",
    "from mpi4py import MPI": "tests/distributed, where there is MPI",
    "adapter = ortrain.": "tests/formats/test_adapter_files.py",
    "cpu = ortrain.OrtDevice": "tests/session/test_sparse_tensors.py",
    "import numpy as np\nimport ortrain\n\nparameters = ortrain.TrainingParameters": "tests/legacy",
    'trainer = Trainer("artifacts", checkpoint="artifacts/best.ckpt")': "tests/trainer/test_raw_rows.py",
    "from ortrain.flower import external_client_app": "tests/flower/test_external.py",
    'session = step.Session("artifacts/step.onnx", checkpoint=': "tests/step/test_moved_runs.py",
    "import torch\nfrom transformers import AutoModelForCausalLM": "an export of PyTorch, which tests of the core do not need",
    "from pathlib import Path\n\nfrom ortrain import Trainer, text": "tests/text/test_generation.py",
    'augmented = Trainer("pictures.onnx"': "tests/trainer/test_augmentation.py",
    "def distorted(pictures, random)": "tests/trainer/test_augmentation.py",
    "from ortrain.onnxblock.optim import ParamGroup\nfrom ortrain.trainer import FreezeGroups": "tests/trainer/test_freezing.py",
    "SPECIAL_POINTS = ": "a line of a file that the guide shows",
}
"""How blocks of Python begin that are shown without being run as they are, and what runs the like."""


def test_every_block_of_python_is_run_or_is_known_not_to_be():
    unknown, seen = [], set()
    for page in PAGES:
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            begin = next((begin for begin in NOT_RUN if block.startswith(begin)), None)
            if page.name == "roles.md":  # see test_roles.py
                continue
            seen.add(begin)
            unknown += [] if begin else [(name_of(page), block[:60])]
    assert unknown == []
    assert seen == set(NOT_RUN)
    named = {path for why in NOT_RUN.values() for path in re.findall(r"tests/[\w/.]+", why)}
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def run_blocks(page: Path) -> dict[str, object]:
    """Run the blocks of a page, and return their names."""
    batches = some_batches()
    names = {"__name__": "example", "batches": batches, "images": batches[-1][0], "labels": batches[-1][1]}
    for line, source in blocks_of(page):
        # With blank lines in front, tracebacks show the line of the page.
        exec(compile("\n" * (line - 1) + source, str(page), "exec"), names)
    return names


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)], ids=name_of)
def test_python_examples_run(page, workplace):
    names = run_blocks(page)
    if any("trained.onnx" in source for _, source in blocks_of(page)):
        (scores,) = onnxruntime.InferenceSession("trained.onnx").run(["output"], {"input": names["images"]})
        assert scores.shape == (16, 10)


@pytest.mark.parametrize(
    "page",
    [
        page
        for page in PAGES
        if any('"artifacts/training_model.onnx"' in source for _, source in blocks_of(page))
    ],
    ids=name_of,
)
def test_the_loop_of_a_page_runs_with_artifacts_of_the_command(page, workplace, of_the_command, monkeypatch):
    shutil.rmtree("artifacts")
    shutil.copytree(of_the_command, "artifacts")
    generate = artifacts.generate_artifacts
    monkeypatch.setattr(
        artifacts,
        "generate_artifacts",
        lambda *given, **named: named.get("artifact_directory") == "artifacts" or generate(*given, **named),
    )
    names = run_blocks(page)
    assert np.ndim(names.get("loss", 0)) == 0


def test_artifacts_and_losses_of_the_page_train_with_trainer_and_command(workplace):
    """Whatever docs/artifacts.md creates with an optimizer trains, and so do its losses in `Trainer`."""
    names = run_blocks(ROOT / "docs/artifacts.md")
    (images, labels) = (np.concatenate(column) for column in zip(*some_batches(), strict=True))
    labels %= 4  # a new head has four classes
    targets = {"labels": labels, "target": np.eye(10, dtype=np.float32)[labels]}
    folders = [path.parent for path in Path().glob("*/optimizer_model.onnx")]
    assert {"artifacts", "blended", "clipped", "with-logits"} <= {folder.name for folder in folders}
    losses = [kind for kind in names.values() if isinstance(kind, type) and issubclass(kind, onnxblock.Block)]
    losses = [kind for kind in losses if not issubclass(kind, onnxblock.TrainingBlock)]
    assert [kind.__name__ for kind in losses] == ["BlendedLoss"]
    trainers = [Trainer(folder) for folder in folders]
    trainers += [Trainer("model.onnx", loss=kind()) for kind in losses]
    for trainer in trainers:
        data = {name: {**targets, "input": images}[name] for name in trainer.inputs.names}
        history = trainer.fit(data, epochs=3, validation=0.25, verbose=False)
        assert history["loss"][-1] < history["loss"][0]
        assert history["val_loss"][-1] < history["val_loss"][0]
    np.savez("data.npz", input=images, **targets)
    for folder in folders:
        target = Trainer(folder).inputs.names[-1]
        assert (
            main(["train", str(folder), "--data", "data.npz", "--target", target, "--validation", "0.25"])
            == 0
        )


def test_scores_at_positions_get_a_mean_as_the_page_says(workplace):
    edited = run_blocks(ROOT / "docs/artifacts.md")["with_mean_over_positions"]
    weight = numpy_helper.from_array(np.ones((5, 3), np.float32), "w")
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 6, size])
        for name, size in (("x", 5), ("y", 3))
    ]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "positions", values[:1], values[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.random.default_rng(0).normal(size=(4, 6, 5)).astype(np.float32)
    session = onnxruntime.InferenceSession(edited(model).SerializeToString())
    np.testing.assert_allclose(session.run(None, {"x": x})[0], (x @ np.ones((5, 3))).mean(1), rtol=1e-5)


@pytest.mark.thorough
def test_the_operator_test_of_the_guide_passes(tmp_path):
    guide = (ROOT / "docs/adding-an-operator.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"^```python pytest\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    (tmp_path / "test_guide.py").write_text(source, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_guide.py"],
        cwd=tmp_path,
        env={**environ, "PYTHONPATH": pathsep.join([str(ROOT / "tests/ops"), str(ROOT / "tests")])},
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


def mean_loss(scores: np.ndarray, labels: np.ndarray) -> float:
    """Cross entropy, computed here in double."""
    wide = scores.astype(np.float64)
    log_sum = np.log(np.exp(wide - wide.max(axis=1, keepdims=True)).sum(axis=1)) + wide.max(axis=1)
    return float((log_sum - wide[np.arange(len(labels)), labels]).mean())


PROGRAMS = [(page, *program) for page in PAGES for program in programs_of(page)]


def test_a_whole_program_is_shown_once_in_every_language():
    shown = sorted((name_of(page), language) for page, _, language, _ in PROGRAMS)
    assert shown == [("docs/other-languages.md", language) for language in sorted(COMPILERS)]


@pytest.mark.parametrize(
    ("page", "line", "language", "source"),
    PROGRAMS,
    ids=[f"{name_of(page)}:{line}-{language}" for page, line, language, _ in PROGRAMS],
)
def test_programs_of_the_pages_train(page, line, language, source, workplace, of_the_command):
    ending, compile_sources = COMPILERS[language]
    # Compiler messages show the line of the page.
    place = f'#line {line + 1} "{page}"'
    if language == "swift":
        place = f'#sourceLocation(file: "{page}", line: {line + 1})'
    Path(f"loop{ending}").write_text(f"{place}\n{source}", encoding="utf-8")
    batches = HERE / {"csharp": "NextBatch.cs", "swift": "NextBatch.swift"}.get(language, "next_batch.c")
    try:
        program = compile_sources([Path(f"loop{ending}"), batches], Path("loop").absolute())
    except Missing as why:
        skip_or_fail(language, why)

    pairs = some_batches(count=40)
    images = np.concatenate([images for images, _ in pairs])
    labels = np.concatenate([labels for _, labels in pairs])
    images.tofile("images.bin")
    labels.astype(np.int64).tofile("labels.bin")
    for other in (None, of_the_command):
        if other is not None:
            shutil.rmtree("artifacts")
            shutil.copytree(other, "artifacts")
        ran = program.run([])
        assert ran.returncode == 0, ran.stderr

        losses = {}
        for model in ("model.onnx", "trained.onnx"):
            (scores,) = onnxruntime.InferenceSession(model).run(["output"], {"input": images})
            losses[model] = mean_loss(scores, labels)
        assert losses["trained.onnx"] < 0.5 * losses["model.onnx"]
        assert Path("trained.ckpt").stat().st_size > 2 * Path("artifacts/checkpoint").stat().st_size, (
            "the optimizer state is in it"
        )

    shutil.rmtree("artifacts")
    wrong = program.run([])
    assert wrong.returncode == 1
    assert "artifacts/checkpoint" in wrong.stderr


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    """The pages of docs/reference that are rendered with the site."""
    folder = tmp_path_factory.mktemp("reference")
    write_pages(render_pages(load(ROOT / "spec")), folder / "api")
    operator_pages.write(folder)
    return folder


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page, rendered):
    prose = FENCED.sub("", page.read_text(encoding="utf-8"))  # code can look like a link: f[x](y)
    missing = []
    for link in LINK.findall(prose):
        target = (page.parent / link).resolve()
        if target.is_relative_to(REFERENCE) and (rendered / target.relative_to(REFERENCE)).exists():
            assert page.is_relative_to(ROOT / "docs"), f"{link} exists on the site alone"
            continue
        if not target.exists():
            missing.append(link)
    assert not missing
