"""Denormal numbers count as zero in training sessions, unless the user requests them."""

from __future__ import annotations

import multiprocessing
import pathlib

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import SessionOptions, artifacts
from ortrain.api import CheckpointState, Module

TINY = np.float32(1e-20)  # its square is a denormal number


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Artifacts of y = w x with the loss mean |y - target|."""
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(np.full(4, TINY), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    artifacts.generate_artifacts(
        onnx.ModelProto.FromString(model.SerializeToString()),
        requires_grad=["w"],
        loss=artifacts.LossType.L1Loss,
        artifact_directory=str(tmp_path),
    )
    return tmp_path


def loss(folder: pathlib.Path, setting: str | None) -> float:
    options = SessionOptions()
    if setting is not None:
        options.add_session_config_entry("session.set_denormal_as_zero", setting)
    state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = Module(str(folder / "training_model.onnx"), state, session_options=options)
    module.train()
    return float(module(np.full((4096, 4), TINY), np.zeros((4096, 4), np.float32)))


def test_training_counts_them_as_zero(folder: pathlib.Path) -> None:
    assert loss(folder, None) == 0
    assert loss(folder, "1") == 0


def test_they_count_where_they_are_asked_for(folder: pathlib.Path) -> None:
    assert loss(folder, "0") == pytest.approx(1e-40, rel=1e-3)


def has_denormals_after_a_step(folder: pathlib.Path) -> bool:
    loss(folder, None)
    return bool(TINY * TINY > 0)


def test_a_step_leaves_the_threads_arithmetic_alone(folder: pathlib.Path) -> None:
    # In a new process: sessions of onnxruntime in other tests switch denormals off and leave them off.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(has_denormals_after_a_step, (folder,))


def test_other_values_are_refused(folder: pathlib.Path) -> None:
    with pytest.raises(Exception, match='expected "0" or "1", found "yes"'):
        loss(folder, "yes")
