"""Whole convolutional networks in float, whose values are stored in other orders, against them in double precision."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from ortrain import artifacts
from training import Array, Training


class Network:
    """A model that is built node by node; weights are random."""

    def __init__(self, dtype: Any, shape: tuple[int | str, ...]) -> None:
        self.dtype = np.dtype(dtype)
        self.kind = helper.np_dtype_to_tensor_dtype(self.dtype)
        self.shape = shape
        self.rng = np.random.default_rng(5)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.trained: list[str] = []

    def weight(self, *shape: int, around: float = 0.0, trained: bool = True) -> str:
        name = f"w{len(self.weights)}"
        fan_in = max(1, int(np.prod(shape[1:])))
        values = around + self.rng.normal(0, 0.3 if around else fan_in**-0.5, shape)
        self.weights.append(
            numpy_helper.from_array(
                np.abs(values).astype(self.dtype) if around else values.astype(self.dtype), name
            )
        )
        if trained:
            self.trained.append(name)
        return name

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def conv(self, x: str, filters: int, channels: int, *kernel: int, **attributes: Any) -> str:
        shape = (filters, channels // attributes.get("group", 1), *kernel)
        return self.add("Conv", x, self.weight(*shape), self.weight(filters), **attributes)

    def normalize(self, x: str, channels: int) -> str:
        statistics = [self.weight(channels, around=1.0, trained=False) for _ in range(2)]
        return self.add(
            "BatchNormalization", x, self.weight(channels, around=1.0), self.weight(channels), *statistics
        )

    def model(self, y: str, width: int) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info("x", self.kind, self.shape)],
            [helper.make_tensor_value_info(y, self.kind, ["batch", width])],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def flat_network(dtype: Any) -> tuple[Network, str, int]:
    """Strided, pointwise, depthwise, grouped and transposed convolutions with pooling in two dimensions."""
    n = Network(dtype, ("batch", 3, 35, 31))
    same = {"pads": [1, 1, 1, 1]}
    x = n.normalize(n.conv("x", 16, 3, 3, 3, strides=[2, 2], **same), 16)
    x = n.add("Tanh", x)
    beside = n.conv(x, 24, 16, 1, 1)
    x = n.add("Clip", n.conv(beside, 24, 24, 3, 3, group=24, **same))
    x = n.add("Add", n.conv(x, 24, 24, 1, 1), beside)
    x = n.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, **same)
    x = n.conv(x, 24, 24, 5, 5, group=24, strides=[2, 2], pads=[2, 2, 2, 2])
    x = n.add("Sigmoid", n.conv(x, 20, 24, 1, 1))
    x = n.add(
        "ConvTranspose",
        x,
        n.weight(20, 6, 3, 3),
        n.weight(12),
        group=2,
        strides=[2, 2],
        output_padding=[1, 0],
    )
    x = n.add("AveragePool", x, kernel_shape=[2, 3], strides=[1, 2], pads=[0, 1, 1, 1], count_include_pad=1)
    x = n.conv(x, 32, 12, 3, 3, group=4, dilations=[2, 2], pads=[2, 2, 2, 2])
    x = n.add("Tanh", n.conv(x, 32, 32, 3, 3, **same))
    x = n.add("Flatten", n.add("GlobalAveragePool", x))
    return n, n.add("Gemm", x, n.weight(32, 5), n.weight(5)), 5


def line_network(dtype: Any) -> tuple[Network, str, int]:
    """A network in one dimension whose last pooling takes the largest of all."""
    n = Network(dtype, ("batch", 2, 200))
    x = n.normalize(n.conv("x", 17, 2, 5, strides=[2], pads=[2, 2]), 17)
    x = n.add("MaxPool", n.add("Tanh", x), kernel_shape=[4], strides=[2])
    x = n.conv(x, 17, 17, 3, group=17, dilations=[4], pads=[4, 4])
    x = n.add("AveragePool", n.conv(x, 30, 17, 3), kernel_shape=[3], strides=[3], ceil_mode=1)
    x = n.add("Flatten", n.add("GlobalMaxPool", n.conv(x, 10, 30, 1)))
    return n, n.add("Gemm", x, n.weight(10, 3), n.weight(3)), 3


def volume_network(dtype: Any) -> tuple[Network, str, int]:
    """The same kinds of layers in three dimensions; the result is flattened as it is."""
    n = Network(dtype, ("batch", 2, 8, 9, 10))
    x = n.add("Tanh", n.conv("x", 8, 2, 3, 3, 3, pads=[1] * 6))
    x = n.add("MaxPool", x, kernel_shape=[2, 2, 2], strides=[2, 2, 2])
    x = n.normalize(n.conv(x, 8, 8, 3, 3, 3, group=8, pads=[1] * 6, strides=[1, 2, 1]), 8)
    x = n.add("AveragePool", n.conv(x, 6, 8, 1, 1, 1), kernel_shape=[2, 1, 2], strides=[2, 1, 2])
    x = n.add("Flatten", n.conv(x, 3, 6, 2, 1, 1))
    return n, n.add("Gemm", x, n.weight(3 * 1 * 2 * 2, 4), n.weight(4)), 4


def train(
    build: Any, dtype: Any, folder: pathlib.Path
) -> tuple[list[float], dict[str, Array], dict[str, Array]]:
    """Return the losses of three steps, the gradients of the first and the parameters after the last."""
    folder.mkdir()
    network, y, width = build(dtype)
    artifacts.generate_artifacts(
        network.model(y, width),
        requires_grad=network.trained,
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=folder,
    )
    training = Training(folder)
    training.optimizer.set_learning_rate(0.01)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(6, *(s for s in network.shape if isinstance(s, int)))).astype(dtype)
    target = rng.normal(size=(6, width)).astype(dtype)
    losses = [training.loss(x, target)]
    gradients = training.gradients()
    losses += [training.step(x, target) for _ in range(3)]
    return losses, gradients, training.parameters()


@pytest.mark.parametrize("build", [flat_network, line_network, volume_network])
def test_a_network_trains_in_float_as_in_double(build: Any, tmp_path: pathlib.Path) -> None:
    losses, gradients, parameters = train(build, np.float32, tmp_path / "float")
    exact_losses, exact_gradients, exact_parameters = train(build, np.float64, tmp_path / "double")
    np.testing.assert_allclose(losses, exact_losses, rtol=1e-5)
    assert gradients.keys() == exact_gradients.keys()
    largest = max(np.abs(g).max() for g in exact_gradients.values())
    for name, expected in exact_gradients.items():
        limit = 2e-5 * max(np.abs(expected).max(), 1e-2 * largest)
        np.testing.assert_allclose(gradients[name], expected, 0, limit, err_msg=name)
    for name, expected in exact_parameters.items():
        np.testing.assert_allclose(parameters[name], expected, 0, 1e-5 * np.abs(expected).max(), err_msg=name)
