"""The effect of each graph optimization level on a model, seen in the kernels of a recorded train step."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import GraphOptimizationLevel, SessionOptions, artifacts
from ortrain.api import CheckpointState, Module

Level = GraphOptimizationLevel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A layer followed by an Identity and two equal nodes, with a bias that can be fused into the product."""
    path = tmp_path_factory.mktemp("levels")
    rng = np.random.default_rng(3)
    weights = {"w": (8, 8), "b": (8,), "scale": (8,)}
    initializers = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in weights.items()
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["biased"]),
        helper.make_node("Identity", ["biased"], ["same"]),
        helper.make_node("Softplus", ["same"], ["first"]),
        helper.make_node("Softplus", ["same"], ["second"]),
        helper.make_node("Mul", ["first", "second"], ["square"]),
        helper.make_node("Mul", ["square", "scale"], ["output"]),
    ]
    graph = helper.make_graph(
        nodes,
        "levels",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["n", 8])],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    artifacts.generate_artifacts(
        model, requires_grad=["w", "b"], loss=artifacts.LossType.MSELoss, artifact_directory=path
    )
    return path


def kernels(folder: pathlib.Path, level: Level | None) -> tuple[list[str], float]:
    """The operators of a train step in order, and the loss."""
    options = SessionOptions()
    if level is not None:
        options.graph_optimization_level = level
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, session_options=options)
    module.train()
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)
    module.start_profiling()
    loss = float(np.asarray(module(x, np.ones((3, 8), np.float32))).ravel()[0])
    events = json.loads(module.end_profiling())["traceEvents"]
    return [event["name"] for event in events if event["cat"] == "train step"], loss


def fused(types: list[str]) -> list[str]:
    return [name for name in types if "Fused" in name or "AndDerivative" in name]


def test_nothing_is_rewritten_at_level_0(folder: pathlib.Path) -> None:
    found, _ = kernels(folder, Level.ORT_DISABLE_ALL)
    assert found.count("Softplus") == 2
    assert {"MatMul", "Add", "Mul"} <= set(found)
    assert not fused(found)


def test_level_1_shares_and_leaves_out_but_fuses_nothing(folder: pathlib.Path) -> None:
    found, _ = kernels(folder, Level.ORT_ENABLE_BASIC)
    assert found.count("Softplus") == 1
    assert {"MatMul", "Add"} <= set(found)
    assert not fused(found)


@pytest.mark.parametrize(
    "level", [Level.ORT_ENABLE_EXTENDED, Level.ORT_ENABLE_LAYOUT, Level.ORT_ENABLE_ALL, None]
)
def test_levels_above_fuse(folder: pathlib.Path, level: Level | None) -> None:
    found, _ = kernels(folder, level)
    assert found.count("Softplus") == 1
    assert fused(found)


def test_all_levels_give_one_loss(folder: pathlib.Path) -> None:
    losses = [kernels(folder, level)[1] for level in Level]
    np.testing.assert_allclose(losses, losses[0], rtol=1e-6)
