"""Parameters of rank 0, such as the temperature of CLIP, keep their shape wherever parameters are passed.

The model is y = gain * x + offset, with the mean squared error to a target, so that all values are known in closed
form.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from ortrain import artifacts, onnxblock
from ortrain.api import CheckpointState, Module, Optimizer
from ortrain.errors import OrtrainError

Array = NDArray[Any]

X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
TARGET = np.array([[1, 0, 1], [0, 1, 0]], np.float32)
RATE = 0.01
GAIN, OFFSET = np.float32(0.5), np.array([0.1, 0.2, 0.3], np.float32)


def network() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "gain"], ["h"]), helper.make_node("Add", ["h", "offset"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
        [numpy_helper.from_array(np.array(GAIN), "gain"), numpy_helper.from_array(OFFSET, "offset")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def make(folder: Path, **settings: Any) -> None:
    defaults = {"loss": artifacts.LossType.MSELoss, "artifact_directory": folder}
    artifacts.generate_artifacts(
        network(), **(defaults | {"optimizer": artifacts.OptimType.AdamW} | settings)
    )


def session(folder: Path, checkpoint: str = "checkpoint") -> tuple[CheckpointState, Module, Optimizer]:
    state = CheckpointState.load_checkpoint(folder / checkpoint)
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(RATE)
    return state, module, optimizer


def step(module: Module, optimizer: Optimizer) -> float:
    loss = float(module(X, TARGET))
    optimizer.step()
    module.lazy_reset_grad()
    return loss


def gradient_of_gain(gain: Array, offset: Array) -> Array:
    return np.asarray((2 * (gain * X + offset - TARGET) * X).mean())


def test_a_scalar_is_trained_saved_loaded_and_exported(tmp_path: Path) -> None:
    make(tmp_path)
    state, module, optimizer = session(tmp_path)
    assert state.parameters["gain"].data.shape == ()
    losses = [float(module(X, TARGET))]
    gradient = state.parameters["gain"].grad
    assert gradient is not None
    assert gradient.shape == ()
    np.testing.assert_allclose(gradient, gradient_of_gain(GAIN, OFFSET), rtol=1e-6)
    optimizer.step()
    module.lazy_reset_grad()
    # The first step of Adam is the learning rate, opposite to the sign of the gradient.
    np.testing.assert_allclose(state.parameters["gain"].data, GAIN - RATE, rtol=1e-5)
    CheckpointState.save_checkpoint(state, tmp_path / "later", include_optimizer_state=True)
    losses += [step(module, optimizer) for _ in range(3)]

    other, again, continued = session(tmp_path, "later")
    assert other.parameters["gain"].data.shape == ()
    assert [step(again, continued) for _ in range(3)] == losses[1:]
    np.testing.assert_array_equal(other.parameters["gain"].data, state.parameters["gain"].data)

    again.eval()
    again.export_model_for_inferencing(str(tmp_path / "exported.onnx"), ["y"])
    exported = onnx.load(tmp_path / "exported.onnx")
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in exported.graph.initializer}
    assert stored["gain"].shape == ()
    gain, offset = state.parameters["gain"].data, state.parameters["offset"].data
    found = onnxruntime.InferenceSession(exported.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(found.run(["y"], {"x": X})[0], gain * X + offset, rtol=1e-6)

    model = network()
    onnxblock.load_checkpoint_to_model(tmp_path / "later", model)
    assert [list(tensor.dims) for tensor in model.graph.initializer] == [[], [3]]


@pytest.mark.parametrize("value", [np.float32(2), np.array(2, np.float32), np.full((), 2, np.float32)])
def test_a_scalar_is_set_and_read_by_name(value: Any, tmp_path: Path) -> None:
    make(tmp_path)
    state, module, _ = session(tmp_path)
    state.parameters["gain"] = value
    assert state.parameters["gain"].data.shape == ()
    np.testing.assert_allclose(float(module(X, TARGET)), ((2 * X + OFFSET - TARGET) ** 2).mean(), rtol=1e-6)
    with pytest.raises(OrtrainError, match=r"expected float32\[\], found float32\[1\]"):
        state.parameters["gain"] = np.array([2], np.float32)


def test_a_scalar_goes_through_a_buffer(tmp_path: Path) -> None:
    make(tmp_path)
    state, module, _ = session(tmp_path)
    buffer = module.get_contiguous_parameters(trainable_only=True).numpy()
    np.testing.assert_array_equal(np.sort(buffer), np.sort([GAIN, *OFFSET]))
    module.copy_buffer_to_parameters(buffer * 2, trainable_only=True)
    np.testing.assert_array_equal(state.parameters["gain"].data, GAIN * 2)
    np.testing.assert_array_equal(state.parameters["offset"].data, OFFSET * 2)


def test_a_frozen_scalar_keeps_its_shape_and_has_no_gradient(tmp_path: Path) -> None:
    make(tmp_path, requires_grad=["offset"], frozen_params=["gain"])
    state, module, optimizer = session(tmp_path)
    assert state.parameters["gain"].data.shape == ()
    assert state.parameters["gain"].grad is None
    assert step(module, optimizer) > step(module, optimizer)
    assert state.parameters["gain"].grad is None
    np.testing.assert_array_equal(state.parameters["gain"].data, GAIN)


def test_a_nominal_checkpoint_has_no_values_until_they_are_loaded(tmp_path: Path) -> None:
    make(tmp_path, nominal_checkpoint=True)
    _, given, _ = session(tmp_path)
    state, module, optimizer = session(tmp_path, "nominal_checkpoint")
    for name, parameter in state.parameters:
        with pytest.raises(OrtrainError, match=f'"{name}".*nominal.*no values yet'):
            _ = parameter.data
    with pytest.raises(OrtrainError, match="nominal"):
        module.get_contiguous_parameters()
    with pytest.raises(OrtrainError, match="nominal"):
        onnxblock.load_checkpoint_to_model(tmp_path / "nominal_checkpoint", network())
    module.copy_buffer_to_parameters(given.get_contiguous_parameters().numpy(), trainable_only=False)
    np.testing.assert_array_equal(state.parameters["gain"].data, np.array(GAIN))
    assert step(module, optimizer) > step(module, optimizer)
