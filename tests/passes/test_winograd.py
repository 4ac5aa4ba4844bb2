"""Convolutions of 3 x 3 windows by Winograd's algorithm: they round differently, but agree."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import InferenceSession, artifacts
from training import Array, Training, options_of

OFF = {"ortrain.disable_pass.winograd": "1"}
BF16 = {"ortrain.mixed_precision": "bf16"}


def network(side: int, activation: str) -> tuple[onnx.ModelProto, list[str]]:
    """Return a residual network with biases whose convolutions use the algorithm, and the names of its weights."""
    rng = np.random.default_rng(3)
    weights: list[onnx.TensorProto] = []

    def weight(name: str, *shape: int) -> str:
        scale = max(1, int(np.prod(shape[1:]))) ** -0.5
        weights.append(numpy_helper.from_array(rng.normal(0, scale, shape).astype(np.float32), name))
        return name

    def conv(x: str, name: str, filters: int, channels: int, pads: list[int]) -> onnx.NodeProto:
        names = [x, weight(name, filters, channels, 3, 3), weight(f"{name}.bias", filters)]
        return helper.make_node("Conv", names, [f"{name}.out"], pads=pads)

    nodes = [
        conv("x", "first", 32, 3, [1, 1, 1, 1]),
        helper.make_node(activation, ["first.out"], ["a"]),
        conv("a", "second", 64, 32, [1, 1, 1, 1]),
        helper.make_node(activation, ["second.out"], ["b"]),
        conv("b", "third", 64, 64, [1, 1, 1, 1]),
        helper.make_node("Add", ["third.out", "b"], ["sum"]),
        helper.make_node(activation, ["sum"], ["c"]),
        conv("c", "fourth", 48, 64, [0, 2, 1, 0]),
        helper.make_node("GlobalAveragePool", ["fourth.out"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node(
            "Gemm", ["flat", weight("dense", 10, 48), weight("dense.bias", 10)], ["y"], transB=1
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, side, side])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    return model, [w.name for w in weights]


def images(seed: int, size: int, side: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((size, 3, side, side), dtype=np.float32), rng.integers(0, 10, size)


def make(folder: pathlib.Path, side: int) -> None:
    # A discontinuous derivative would amplify a difference in the last bit.
    model, names = network(side, "Tanh")
    artifacts.generate_artifacts(
        model,
        requires_grad=names,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )


def train(folder: pathlib.Path, side: int, config: dict[str, str]) -> tuple[list[float], dict[str, Array]]:
    """Return the losses of some steps, and the gradients of the first."""
    training = Training(folder, config)
    losses = [training.loss(*images(0, 24, side))]
    gradients = training.gradients()
    # Too few images for the algorithm in between.
    losses += [training.step(*images(size, size, side)) for size in (24, 3, 24)]
    return [*losses, training.evaluate(*images(9, 30, side))], gradients


@pytest.mark.parametrize("side", [12, 15])
def test_losses_and_gradients_are_those_of_the_direct_convolution(tmp_path: pathlib.Path, side: int) -> None:
    make(tmp_path, side)
    losses, gradients = train(tmp_path, side, {})
    direct_losses, direct_gradients = train(tmp_path, side, OFF)
    np.testing.assert_allclose(losses, direct_losses, rtol=1e-5)
    for name, expected in direct_gradients.items():
        largest = np.abs(expected).max()
        # The direct convolution sums a bias's gradient element by element, which loses more precision than all else.
        atol = 3e-5 if name.endswith(".bias") else 3e-6
        np.testing.assert_allclose(gradients[name] / largest, expected / largest, atol=atol, err_msg=name)
    same = all((gradients[name] == expected).all() for name, expected in direct_gradients.items())
    assert not same, "the pass that allows the algorithm changes which one is taken"


def test_values_may_lie_in_bfloat16(tmp_path: pathlib.Path) -> None:
    make(tmp_path, 12)
    losses, gradients = train(tmp_path, 12, BF16)
    exact_losses, exact_gradients = train(tmp_path, 12, OFF)
    np.testing.assert_allclose(losses, exact_losses, rtol=1e-2)
    for name, expected in exact_gradients.items():
        assert np.abs(gradients[name] - expected).max() < 3e-2 * np.abs(expected).max(), name


def test_inference_gives_what_onnxruntime_gives() -> None:
    model, _ = network(14, "Relu")
    x, _ = images(1, 20, 14)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    found = {
        winograd: InferenceSession(model.SerializeToString(), options_of(config)).run(None, {"x": x})[0]
        for winograd, config in [(True, {}), (False, OFF)]
    }
    for result in found.values():
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)
    assert not (found[True] == found[False]).all()
