"""Gradients that are NaN or infinite: an optimizer step rejects, skips or applies them, as the session is configured."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from ortrain import OrtErrorCode, OrtrainError, artifacts
from ortrain.api import CheckpointState
from recorded import Fixture
from session.test_optimizer_models import with_clip
from training import Training

Array = NDArray[Any]
KEY = "ortrain.nonfinite_gradients"
WIDE = 70_001  # several threads, and a rest behind the last whole vector


def artifacts_of(folder: pathlib.Path, optimizer: str, dtype: Any, clips: bool = False) -> pathlib.Path:
    """Write a training run whose loss is sum(a x) + sum(b b), so that the gradient of a is x and that of b is 2 b."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Mul", ["a", "x"], ["ax"]),
        helper.make_node("Mul", ["b", "b"], ["bb"]),
        helper.make_node("ReduceSum", ["ax"], ["left"], keepdims=0),
        helper.make_node("ReduceSum", ["bb"], ["right"], keepdims=0),
        helper.make_node("Add", ["left", "right"], ["loss"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, [WIDE])],
        [helper.make_tensor_value_info("loss", kind, [])],
        [
            numpy_helper.from_array(rng.normal(size=n).astype(dtype), name)
            for name, n in (("a", WIDE), ("b", 5))
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    kinds = {"adamw": artifacts.OptimType.AdamW, "sgd": artifacts.OptimType.SGD}
    artifacts.generate_artifacts(
        model, requires_grad=["a", "b"], optimizer=kinds[optimizer], artifact_directory=str(folder)
    )
    if clips:
        with_clip(folder / "optimizer_model.onnx", folder / "optimizer_model.onnx", 0.5)
    return folder


def everything(training: Training, path: pathlib.Path) -> tuple[bytes, list[bytes]]:
    """Return the checkpoint with its optimizer state, and the gradients."""
    CheckpointState.save_checkpoint(training.state, path, include_optimizer_state=True)
    return path.read_bytes(), [value.tobytes() for value in training.gradients().values()]


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_the_update_is_rejected_and_nothing_changes(
    tmp_path: pathlib.Path, optimizer: str, bad: float, dtype: Any, clips: bool
) -> None:
    folder = artifacts_of(tmp_path, optimizer, dtype, clips)
    training, undisturbed = Training(folder), Training(folder)
    rng = np.random.default_rng(1)
    steps = [rng.normal(scale=0.01, size=WIDE).astype(dtype) for _ in range(3)]
    training.step(steps[0])
    undisturbed.step(steps[0])

    for place in (0, WIDE // 2, WIDE - 1):
        x = steps[1].copy()
        x[place] = bad
        training.module(x)
        before = everything(training, tmp_path / "before")
        with pytest.raises(OrtrainError) as caught:
            training.optimizer.step()
        assert everything(training, tmp_path / "after") == before
        assert caught.value.code == OrtErrorCode.ORT_RUNTIME_EXCEPTION
        message = caught.value.message
        assert "optimizer step 2: the gradients of 1 of 2 parameters are not finite" in message
        nans = int(np.isnan(bad))
        counts = "1 is NaN and 0 infinite" if nans else "0 are NaN and 1 infinite"
        assert f'"a": of {WIDE} elements {counts}' in message
        assert '"b"' not in message
        assert re.search("The loss of the last train step was " + ("nan" if nans else "-?inf"), message)
        training.module.lazy_reset_grad()

    for x in steps[1:]:
        training.step(x)
        undisturbed.step(x)
    assert everything(training, tmp_path / "after") == everything(undisturbed, tmp_path / "undisturbed")


def test_gradients_that_are_finite_may_have_an_infinite_sum(tmp_path: pathlib.Path) -> None:
    training = Training(artifacts_of(tmp_path, "sgd", np.float32))
    for _ in range(2):
        training.module(np.full(WIDE, 3e38, np.float32))
    with pytest.raises(OrtrainError, match=f'"a": of {WIDE} elements 0 are NaN and {WIDE} infinite'):
        training.optimizer.step()


def test_steps_are_skipped_and_counted(tmp_path: pathlib.Path) -> None:
    folder = artifacts_of(tmp_path, "adamw", np.float32)
    training, undisturbed = Training(folder, {KEY: "skip"}), Training(folder)
    x = np.full(WIDE, 0.25, np.float32)
    for step in range(6):
        good = x * step
        if step % 3 == 1:
            training.step(np.where(np.arange(WIDE) == step, np.float32(np.nan), good))
        else:
            training.step(good)
            undisturbed.step(good)
    assert training.optimizer.get_skipped_step_count() == 2
    assert undisturbed.optimizer.get_skipped_step_count() == 0
    assert everything(training, tmp_path / "a")[0] == everything(undisturbed, tmp_path / "b")[0]


def test_gradients_that_accumulate_stay_as_they_are(tmp_path: pathlib.Path) -> None:
    training = Training(artifacts_of(tmp_path, "sgd", np.float32), {KEY: "skip"})
    training.module(np.full(WIDE, np.inf, np.float32))
    training.optimizer.step()
    training.module(np.zeros(WIDE, np.float32))
    assert np.isinf(training.gradients()["a"]).all()
    training.optimizer.step()
    assert training.optimizer.get_skipped_step_count() == 2
    training.module.lazy_reset_grad()
    training.module(np.ones(WIDE, np.float32))
    before = training.parameters()["a"]
    training.optimizer.step()
    np.testing.assert_allclose(training.parameters()["a"], before - 1e-3, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_they_are_applied_as_onnxruntime_does(tmp_path: pathlib.Path, optimizer: str) -> None:
    training = Training(artifacts_of(tmp_path, optimizer, np.float32), {KEY: "apply"})
    x = np.zeros(WIDE, np.float32)
    x[7] = np.nan
    training.step(x)
    parameters = training.parameters()
    assert np.isnan(parameters["a"][7])
    assert np.isfinite(np.delete(parameters["a"], 7)).all()
    assert training.optimizer.get_skipped_step_count() == 0


def test_a_network_names_its_parameters(tmp_path: pathlib.Path) -> None:
    fixture = Fixture("mlp_adamw")
    training = Training(fixture.folder)
    x, y = fixture.batches[0]
    training.module(np.full_like(x, np.nan), y)
    gradients = training.gradients()
    names = [name for name, gradient in gradients.items() if not np.isfinite(gradient).all()]
    assert names
    with pytest.raises(OrtrainError) as caught:
        training.optimizer.step()
    assert f"the gradients of {len(names)} of {len(gradients)} parameters" in caught.value.message
    assert all(f'"{name}"' in caught.value.message for name in names)
    training.module.lazy_reset_grad()
    other = Training(fixture.folder)
    assert [training.step(*batch) for batch in fixture.batches] == [
        other.step(*batch) for batch in fixture.batches
    ]
