"""New heads and adapters as step models: what is trained is small, and everything else stays as it is."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import pytest
from ortrain import artifacts, step
from ortrain.artifacts import Head, LoRA
from ortrain.artifacts.step import generate_step
from ortrain.cli import main
from ortrain.step._tensor_rules import TENSOR_RULES
from recorded import Fixture
from training import Training

Array = np.ndarray[Any, Any]
ENCODER = Fixture("encoder")
CROSS_ENTROPY = artifacts.LossType.CrossEntropyLoss
CASES: dict[str, dict[str, Any]] = {
    "head": {"head": Head(4)},
    "adapter": {"adapter": LoRA(r=2), "loss": CROSS_ENTROPY},
    "both": {"head": Head(4), "adapter": LoRA(r=2)},
}


def batches(count: int) -> list[tuple[Array, Array]]:
    return [(x, y % 4) for x, y in (ENCODER.batches * count)[:count]]


@pytest.mark.parametrize("case", CASES)
def test_a_new_head_and_adapters_train_as_in_a_session(case: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "step.onnx"
    report = generate_step(ENCODER.path("model.onnx"), path=path, **CASES[case])
    here, there = Training(tmp_path), step.Session(path, learning_rate=0.01)
    here.optimizer.set_learning_rate(0.01)
    start = there.parameters
    expected, found = [], []
    for batch in batches(20):
        expected.append(here.step(*batch))
        result = there(*batch)
        found.append(float(result[0] if isinstance(result, tuple) else result))
    np.testing.assert_allclose(found, expected, 1e-5)
    assert found[-1] < found[0]
    changed = {name for name, value in there.parameters.items() if not np.array_equal(value, start[name])}
    assert changed == set(report.trained)
    there.save_checkpoint(tmp_path / "trained.ckpt")
    continued = Training(tmp_path, checkpoint="trained.ckpt")
    step.Session(path, checkpoint=tmp_path / "trained.ckpt")
    assert continued.step(*batches(1)[0]) == pytest.approx(here.step(*batches(1)[0]), rel=1e-5)


@pytest.mark.parametrize("model", ["bert", "vit"])
def test_adapters_in_fused_operators_train_as_in_a_session(model: str, tmp_path: pathlib.Path) -> None:
    folder, rng = pathlib.Path(__file__).parents[1] / "data" / "lora", np.random.default_rng(0)
    ids = rng.integers(1, 60, (3, 10))
    inputs = (
        [rng.normal(size=(3, 3, 16, 16)).astype(np.float32)]
        if model == "vit"
        else [ids, ids * 0 + 1, ids * 0]
    )
    path, target = tmp_path / "step.onnx", rng.integers(0, 3, 3)
    lora = LoRA(r=2, targets=["q", "v"] if model == "bert" else "all-linear")
    generate_step(folder / f"{model}_optimized.onnx", path=path, adapter=lora, loss=CROSS_ENTROPY)
    here, there = Training(tmp_path), step.Session(path, learning_rate=0.01)
    here.optimizer.set_learning_rate(0.01)
    losses = [(here.step(*inputs, target), float(there(*inputs, target)[0])) for _ in range(10)]
    np.testing.assert_allclose(*np.transpose(losses), rtol=1e-5)
    assert losses[-1][0] < losses[0][0]


def test_adapters_of_another_base_are_rejected(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "step.onnx"
    generate_step(ENCODER.path("model.onnx"), path=path, **CASES["adapter"])
    with pytest.raises(
        ValueError, match=r"expected adapters of the base of the step model, .*, found those of no base"
    ):
        step.Session(path, checkpoint=ENCODER.path("checkpoint"))


def test_the_command_line_writes_steps_of_heads_and_adapters(tmp_path: pathlib.Path) -> None:
    options = ["--classes", "4", "--adapter", "lora", "--rank", "2", "--step", "--out", str(tmp_path)]
    assert not main(["artifacts", str(ENCODER.path("model.onnx")), *options])
    assert {entry.domain for entry in onnx.load(tmp_path / "step.onnx").opset_import} == {""}
    session = step.Session(tmp_path / "step.onnx", learning_rate=0.01)
    first = session(*batches(1)[0])
    assert session(*batches(1)[0])[0] < first[0]


def test_the_command_line_has_the_settings_of_a_step(tmp_path: pathlib.Path) -> None:
    model, out = str(ENCODER.path("model.onnx")), ["--out", str(tmp_path)]
    settings = ["--opset", "20", "--loss-scaling", "--no-initializers", "--accumulate", "2"]
    assert not main(["artifacts", model, "--loss", "cross_entropy", "--step", *settings, *out])
    made = onnx.load(tmp_path / "step.onnx")
    assert made.opset_import[0].version == 20
    assert not {tensor.name for tensor in made.graph.initializer} & {"head.weight"}
    session = step.Session(tmp_path / "step.onnx", checkpoint=tmp_path / "checkpoint", learning_rate=0.01)
    x, y = (np.stack([values, values]) for values in ENCODER.batches[0])
    assert np.isfinite(session(x, y)[0])
    assert session.step_count == 1
    for setting in (
        ["--opset", "20"],
        ["--loss-scaling"],
        ["--no-initializers"],
        ["--accumulate", "2"],
        ["--rows", "1"],
    ):
        assert main(["artifacts", model, "--loss", "cross_entropy", *setting, *out]) == 2


def test_artifacts_stay_if_the_optimizer_has_no_step_model(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(TENSOR_RULES, "muon")
    options = ["--loss", "cross_entropy", "--optimizer", "muon", "--step", "--out", str(tmp_path)]
    assert main(["artifacts", str(ENCODER.path("model.onnx")), *options]) == 1
    assert "the optimizer muon has no standard form" in (error := capsys.readouterr().err)
    assert f"the artifacts in {tmp_path} are complete, but there is no step.onnx" in error
    assert (tmp_path / "optimizer_model.onnx").exists()
    assert not (tmp_path / "step.onnx").exists()
