"""The gradient of HardSwish is one node, with the gradient that its steps have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import ortrain
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from ortrain import artifacts

PASS = "fuse_hard_swish_gradient"
SPECIAL = np.array(
    [[-np.inf, -3.5, -3, np.nextafter(np.float32(-3), np.float32(0)), -1.5, 0, 1, 3, 3.5, np.inf, np.nan]],
    np.float32,
)
RANDOM = np.random.default_rng(0).normal(0, 3, (1001, SPECIAL.size)).astype(np.float32)


def training_model(folder: Path) -> onnx.ModelProto:
    """Return the training model of HardSwish(x + w) with the squared error, whose only output is the gradient of w."""
    columns = SPECIAL.size
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["sum"]), helper.make_node("HardSwish", ["sum"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", columns])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", columns])],
        [numpy_helper.from_array(np.zeros(columns, np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    artifacts.generate_artifacts(
        model, requires_grad=["w"], loss=artifacts.LossType.MSELoss, artifact_directory=folder
    )
    training = onnx.load(folder / "training_model.onnx")
    (accumulator,) = (node for node in training.graph.node if node.op_type == "InPlaceAccumulatorV2")
    training.graph.node.remove(accumulator)
    del training.graph.output[:]
    training.graph.output.append(
        helper.make_tensor_value_info(accumulator.input[1], TensorProto.FLOAT, [columns])
    )
    return training


def run(
    model: onnx.ModelProto, folder: Path, x: NDArray[np.float32], *disabled: str
) -> tuple[NDArray[np.float32], list[str]]:
    """Return the gradient of w, and the operators that the session runs."""
    options = ortrain.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    for name in disabled:
        options.add_session_config_entry(f"ortrain.disable_pass.{name}", "1")
    session = ortrain.InferenceSession(model.SerializeToString(), options)
    zeros = np.zeros(x.shape[1], np.float32)
    given = {"x": x, "target": np.full_like(x, 0.25), "w": zeros, "w_grad.accumulation.buffer": zeros}
    given["lazy_reset_grad"] = np.array([True])
    (gradient,) = session.run(None, {value.name: given[value.name] for value in session.get_inputs()})
    return gradient, [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]


@pytest.mark.parametrize("x", [SPECIAL, RANDOM], ids=["special", "random"])
def test_one_node_has_the_gradient(x: NDArray[np.float32], tmp_path: Path) -> None:
    model = training_model(tmp_path)
    found, ran = run(model, tmp_path, x)
    expected, separate = run(model, tmp_path, x, PASS)
    np.testing.assert_array_equal(found, expected)
    assert ran.count("HardSwishGrad") == 1
    assert "Where" not in ran
    assert separate.count("Where") == 2


def test_the_slope_is_that_of_the_function(tmp_path: Path) -> None:
    x = np.array([[-4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6]], np.float32)
    found, _ = run(training_model(tmp_path), tmp_path, x)
    value, slope = x * np.clip(x / 6 + 0.5, 0, 1), np.where(x > 3, 1, np.where(x < -3, 0, x / 3 + 0.5))
    np.testing.assert_allclose(found, (2 * (value - 0.25) * slope / x.size)[0], rtol=1e-6)


def test_other_numbers_are_kept(tmp_path: Path) -> None:
    model = training_model(tmp_path)
    expected, _ = run(model, tmp_path, RANDOM)
    for node in model.graph.node:
        if node.op_type == "Greater":
            model.graph.initializer.append(numpy_helper.from_array(np.array(2, np.float32), "two"))
            node.input[1] = "two"
    found, ran = run(model, tmp_path, RANDOM)
    assert "HardSwishGrad" not in ran
    assert np.abs(found - expected).max() > 1e-3


@pytest.mark.parametrize("shape", [(), (1,), (11,), (2, 1), (3, 2, 11)])
def test_a_factor_of_another_shape_broadcasts(shape: tuple[int, ...]) -> None:
    """A model may have the nodes of the gradient without being one."""
    steps = [
        ("Greater", ["x", "three"], "above"),
        ("Less", ["x", "minus_three"], "below"),
        ("Mul", ["dy", "zero"], "nothing"),
        ("Div", ["x", "three"], "third"),
        ("Add", ["third", "half"], "slope"),
        ("Mul", ["dy", "slope"], "between"),
        ("Where", ["below", "nothing", "between"], "lower"),
        ("Where", ["above", "dy", "lower"], "dx"),
        ("HardSwish", ["x"], "y"),
    ]
    numbers = {"three": 3.0, "minus_three": -3.0, "zero": 0.0, "half": 0.5}
    inputs = {"x": ("n", 11), "dy": shape}
    graph = helper.make_graph(
        [helper.make_node(kind, names, [made]) for kind, names, made in steps],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("dx", "y")],
        [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in numbers.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    given = {"x": RANDOM[:2], "dy": np.random.default_rng(1).normal(size=shape).astype(np.float32)}
    results = []
    for disabled in ("0", "1"):
        options = ortrain.SessionOptions()
        options.add_session_config_entry(f"ortrain.disable_pass.{PASS}", disabled)
        results.append(ortrain.InferenceSession(model.SerializeToString(), options).run(["dx"], given)[0])
    np.testing.assert_array_equal(*results)
