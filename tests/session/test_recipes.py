"""Groups by module and layer, what clips gradients, and the average of the weights, against their formulas."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from ortrain import artifacts
from ortrain.api import CheckpointState
from ortrain.errors import InvalidArgumentError
from ortrain.onnxblock import optim
from training import Training

Array = NDArray[Any]
RATE = 0.125
START = {
    "embedding.weight": (4, 4),
    "layer.0.weight": (4, 4),
    "layer.0.bias": (4,),
    "layer.1.weight": (4, 4),
    "layer.1.bias": (4,),
    "head.weight": (4, 3),
}
random = np.random.default_rng(5)
VALUES = {name: random.normal(size=shape).astype(np.float32) for name, shape in START.items()}
GRADIENTS = [
    {name: random.normal(size=shape).astype(np.float32) for name, shape in START.items()} for _ in range(12)
]
X = random.normal(size=(5, 4)).astype(np.float32)


def make(folder: pathlib.Path, optimizer: Any) -> pathlib.Path:
    nodes, last = [], "x"
    for name in VALUES:
        operator = "Add" if name.endswith("bias") else "MatMul"
        nodes.append(helper.make_node(operator, [last, name], [f"after {name}"]))
        last = f"after {name}"
    nodes[-1].output[0] = "y"
    float32 = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "layers",
        [helper.make_tensor_value_info("x", float32, ["n", 4])],
        [helper.make_tensor_value_info("y", float32, ["n", 3])],
        [numpy_helper.from_array(value, name) for name, value in VALUES.items()],
    )
    artifacts.generate_artifacts(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        requires_grad=list(VALUES),
        loss=artifacts.LossType.MSELoss,
        optimizer=optimizer,
        artifact_directory=folder,
        additional_output_names=["y"],
    )
    return folder


def steps(training: Training, numbers: range) -> list[dict[str, Array]]:
    """Take steps with the gradients above; return the weights after each."""
    after = []
    for step in numbers:
        for name, parameter in training.state.parameters:
            parameter.grad = GRADIENTS[step][name]
        training.optimizer.step()
        training.module.lazy_reset_grad()
        after.append(training.parameters())
    return after


def first_step(folder: pathlib.Path, optimizer: Any) -> dict[str, Array]:
    """Return by which gradients a step of SGD changed the weights."""
    training = Training(make(folder, optimizer))
    training.optimizer.set_learning_rate(RATE)
    (after,) = steps(training, range(1))
    return {name: (VALUES[name] - after[name]) / np.float32(RATE) for name in VALUES}


def norm(values: Any) -> float:
    return float(np.sqrt(sum(np.sum(np.square(value, dtype=np.float64)) for value in values)))


def test_gradients_are_clipped_by_value(tmp_path: pathlib.Path) -> None:
    found = first_step(tmp_path, optim.SGD(clip_grad=optim.ClipGradValue(0.5)))
    for name, gradient in GRADIENTS[0].items():
        np.testing.assert_allclose(found[name], np.clip(gradient, -0.5, 0.5), atol=2e-6)


def test_gradients_are_clipped_by_the_norm_of_their_parameter(tmp_path: pathlib.Path) -> None:
    found = first_step(tmp_path, optim.SGD(clip_grad=optim.ClipAdaptive(0.75)))
    scaled = 0
    for name, gradient in GRADIENTS[0].items():
        factor = min(1.0, 0.75 * max(norm([VALUES[name]]), 1e-3) / norm([gradient]))
        scaled += factor < 1
        np.testing.assert_allclose(found[name], gradient * factor, atol=2e-6)
    assert scaled > 0


def test_gradients_are_clipped_by_the_norm_of_their_group(tmp_path: pathlib.Path) -> None:
    group = optim.ParamGroup("layers", ["layer.0", "layer.1"])
    found = first_step(tmp_path, optim.SGD(clip_grad=optim.ClipGroupNorm(2.0), param_groups=[group]))
    for members in ([n for n in VALUES if "layer" in n], [n for n in VALUES if "layer" not in n]):
        factor = min(1.0, 2.0 / (norm(GRADIENTS[0][name] for name in members) + 1e-6))
        assert factor < 1
        for name in members:
            np.testing.assert_allclose(found[name], GRADIENTS[0][name] * factor, atol=2e-6)


def test_values_are_clipped_before_the_norm(tmp_path: pathlib.Path) -> None:
    both = [optim.ClipGradValue(0.5), optim.ClipGradNorm(1.0)]
    found = first_step(tmp_path, optim.SGD(clip_grad=both))
    clipped = {name: np.clip(gradient, -0.5, 0.5) for name, gradient in GRADIENTS[0].items()}
    factor = 1.0 / (norm(clipped.values()) + 1e-6)
    for name, gradient in clipped.items():
        np.testing.assert_allclose(found[name], gradient * factor, atol=2e-6)


def test_rules_for_groups_are_applied_together(tmp_path: pathlib.Path) -> None:
    groups = optim.ParamGroups(
        {"head": {"lr_factor": 4.0}, "layer.1": {"betas": (0.5, 0.75)}},
        no_decay="norm_and_bias",
        layer_decay=0.5,
    )
    training = Training(make(tmp_path, optim.AdamW(weight_decay=0.25, param_groups=groups)))
    found = {}
    for name in VALUES:
        group = training.optimizer.param_groups[training.optimizer.get_parameter_group(name)]
        found[name] = (group.learning_rate_factor, group.weight_decay, group.alpha)
    kept = pytest.approx(0.9)
    assert found == {
        "embedding.weight": (0.125, 0.25, kept),
        "layer.0.weight": (0.25, 0.25, kept),
        "layer.0.bias": (0.25, 0.0, kept),
        "layer.1.weight": (0.5, 0.25, 0.5),
        "layer.1.bias": (0.5, 0.0, 0.5),
        "head.weight": (4.0, 0.25, kept),
    }


def test_a_decay_by_layer_needs_layers() -> None:
    with pytest.raises(ValueError, match=r"expected parameters of numbered modules, such as .*, found w"):
        optim.ParamGroups(layer_decay=0.5).of([onnx.TensorProto(name="w", dims=[2, 2])])


def average(weights: list[dict[str, Array]], decay: float, warmup: bool) -> dict[str, Array]:
    found = {name: value.astype(np.float64) for name, value in weights[0].items()}
    for n, values in enumerate(weights[1:], start=1):
        kept = min(decay, (1 + n) / (10 + n)) if warmup else decay
        found = {name: kept * found[name] + (1 - kept) * values[name] for name in found}
    return found


def scores(parameters: dict[str, Array]) -> Array:
    value = X.astype(np.float64)
    for name, parameter in parameters.items():
        value = value + parameter if name.endswith("bias") else value @ parameter
    return value


@pytest.mark.parametrize("warmup", [False, True])
def test_evaluation_and_export_use_the_average_of_the_weights(tmp_path: pathlib.Path, warmup: bool) -> None:
    lion = optim.Lion(ema=optim.WeightAverage(0.75, warmup), param_groups=[optim.no_decay()])
    folder = make(tmp_path, lion)
    target = np.zeros((5, 3), np.float32)
    training = Training(folder)
    training.optimizer.set_learning_rate(RATE)
    before = training.module.eval()(X, target)[1]
    np.testing.assert_allclose(before, scores(VALUES), rtol=1e-4, atol=1e-5)  # there is no average yet
    training.module.train()
    weights = steps(training, range(5))
    CheckpointState.save_checkpoint(training.state, tmp_path / "halfway", include_optimizer_state=True)
    weights += steps(training, range(5, 12))
    resumed = Training(folder, checkpoint="halfway")
    resumed.optimizer.set_learning_rate(RATE)
    steps(resumed, range(5, 12))

    found = training.module.eval()(X, target)[1]
    assert np.array_equal(found, resumed.module.eval()(X, target)[1])
    expected = scores(average(weights, 0.75, warmup))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    training.module.export_model_for_inferencing(tmp_path / "averaged.onnx", ["y"])
    (exported,) = onnxruntime.InferenceSession(tmp_path / "averaged.onnx").run(None, {"x": X})
    np.testing.assert_allclose(exported, expected, rtol=1e-4, atol=1e-4)

    training.optimizer.use_average_weights(False)
    raw = training.module.eval()(X, target)[1]
    np.testing.assert_allclose(raw, scores(weights[-1]), rtol=1e-4, atol=1e-4)
    assert np.abs(raw - found).max() > 1e-2


def test_an_optimizer_without_an_average_says_so(tmp_path: pathlib.Path) -> None:
    training = Training(make(tmp_path, optim.SGD()))
    with pytest.raises(InvalidArgumentError, match="the optimizer model has no node WeightAverage"):
        training.optimizer.use_average_weights(True)
