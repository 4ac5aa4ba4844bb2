"""An instance normalization of groups, between two Reshapes, is one group normalization."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import ortrain
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import artifacts
from ortrain.api import CheckpointState, Module, Optimizer

X = np.random.default_rng(0).normal(1, 2, (3, 6, 4, 5)).astype(np.float32)


def model(
    groups: int = 2, *, opset: int = 18, dims: Any = ("n", 6, 4, 5), last: Any = None, parts: Any = None
) -> onnx.ModelProto:
    """Return the nodes that exporters of PyTorch write for a group normalization."""
    random = np.random.default_rng(1)
    numbers: dict[str, np.ndarray] = {
        "parts": np.array([0, groups, -1] if parts is None else parts),
        "ones": np.linspace(0.5, 1.5, groups).astype(np.float32),
        "zeros": np.linspace(-1, 1, groups).astype(np.float32),
        "weight": random.normal(1, 0.2, (6, 1, 1)).astype(np.float32),
        "bias": random.normal(0, 0.2, (6, 1, 1)).astype(np.float32),
    }
    if last is not None:
        numbers["last"] = np.array(last)
    nodes = [
        helper.make_node("Reshape", ["x", "parts"], ["grouped"]),
        helper.make_node("InstanceNormalization", ["grouped", "ones", "zeros"], ["normal"], epsilon=0.01),
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Reshape", ["normal", "shape" if last is None else "last"], ["apart"]),
        helper.make_node("Mul", ["apart", "weight"], ["scaled"]),
        helper.make_node("Add", ["scaled", "bias"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, dims)],
        [numpy_helper.from_array(value, name) for name, value in numbers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(made: onnx.ModelProto, folder: Path, disabled: bool) -> tuple[np.ndarray, list[str]]:
    options = ortrain.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.add_session_config_entry("ortrain.disable_pass.fuse_group_normalization", str(int(disabled)))
    (y,) = ortrain.InferenceSession(made.SerializeToString(), options).run(None, {"x": X})
    return y, [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]


@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_one_node_has_the_values(groups: int, opset: int, tmp_path: Path) -> None:
    found, ran = run(model(groups, opset=opset), tmp_path, disabled=False)
    expected, separate = run(model(groups, opset=opset), tmp_path, disabled=True)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert ran.count("GroupNormalization") == 1
    assert not {"InstanceNormalization", "Reshape"} & set(ran)
    assert "InstanceNormalization" in separate


@pytest.mark.parametrize(
    "options",
    [
        {"opset": 17},
        {"dims": ("n", "c", 4, 5)},
        {"parts": [3, 2, 6, -1], "groups": 2},
        {"last": [-1, 6, 5, 4]},
    ],
    ids=["before the operator", "unknown channels", "four axes", "another shape"],
)
def test_others_are_kept(options: dict[str, Any], tmp_path: Path) -> None:
    made = model(**options)
    if "last" in options:  # the weights broadcast to both shapes
        made.graph.output[0].type.tensor_type.ClearField("shape")
    found, ran = run(made, tmp_path, disabled=False)
    expected, _ = run(made, tmp_path, disabled=True)
    np.testing.assert_array_equal(found, expected)
    assert "InstanceNormalization" in ran


def test_a_normalization_that_is_read_twice_stays(tmp_path: Path) -> None:
    made = model()
    made.graph.output.append(helper.make_tensor_value_info("normal", TensorProto.FLOAT, None))
    ortrain.InferenceSession(made.SerializeToString()).run(None, {"x": X})
    options = ortrain.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ortrain.InferenceSession(made.SerializeToString(), options)
    assert "GroupNormalization" not in [n.op_type for n in onnx.load(tmp_path / "optimized.onnx").graph.node]


def test_two_normalizations_may_share_a_reshape(tmp_path: Path) -> None:
    """With a group for each channel, the second Reshape of one is the first of the other."""
    steps = [
        ("Reshape", ["x", "parts"], "grouped"),
        ("InstanceNormalization", ["grouped", "ones", "zeros"], "normal"),
        ("Reshape", ["normal", "parts"], "between"),
        ("InstanceNormalization", ["between", "zeros", "ones"], "normal_again"),
        ("Reshape", ["normal_again", "parts"], "y"),
    ]
    graph = helper.make_graph(
        [helper.make_node(kind, names, [made]) for kind, names, made in steps],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6, 20])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 6, 20])],
        [
            numpy_helper.from_array(np.array([0, 6, 20]), "parts"),
            numpy_helper.from_array(np.ones(6, np.float32), "ones"),
            numpy_helper.from_array(np.linspace(-1, 1, 6).astype(np.float32), "zeros"),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    given = {"x": X.reshape(3, 6, 20)}
    results = []
    for disabled in ("0", "1"):
        options = ortrain.SessionOptions()
        options.add_session_config_entry("ortrain.disable_pass.fuse_group_normalization", disabled)
        results.append(ortrain.InferenceSession(made.SerializeToString(), options).run(None, given)[0])
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-6)


def test_training_has_the_gradients(tmp_path: Path) -> None:
    losses = []
    for name, disabled in (("fused", []), ("separate", ["fuse_group_normalization"])):
        folder = tmp_path / name
        folder.mkdir()
        artifacts.generate_artifacts(
            model(),
            requires_grad=["weight", "bias", "ones", "zeros"],
            loss=artifacts.LossType.MSELoss,
            optimizer=artifacts.OptimType.SGD,
            artifact_directory=folder,
        )
        onnx.checker.check_model(folder / "training_model.onnx")
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        options = ortrain.SessionOptions()
        for unwanted in disabled:
            options.add_session_config_entry(f"ortrain.disable_pass.{unwanted}", "1")
        module = Module(folder / "training_model.onnx", state, session_options=options)
        optimizer = Optimizer(folder / "optimizer_model.onnx", module)
        optimizer.set_learning_rate(0.5)
        target = np.zeros_like(X)
        found = []
        for _ in range(5):
            found.append(float(np.asarray(module(X, target))))
            optimizer.step()
            module.lazy_reset_grad()
        module.start_profiling()
        module(X, target)
        ran = {event["name"] for event in json.loads(module.end_profiling())["traceEvents"]}
        assert ("GroupNormalization" in ran) == (not disabled)
        assert ("InstanceNormalization" in ran) == bool(disabled)
        losses.append(found)
    assert losses[0][-1] < losses[0][0] / 2
    np.testing.assert_allclose(*losses, rtol=1e-4)
