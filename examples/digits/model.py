"""The network of the demo: a plain ONNX model, built only with ``onnx.helper``."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8  # the one of opset 17, so that runtimes of that time can read the exported model too


class Network:
    """A chain of layers written as an ONNX graph, one method per layer.

    Parameters
    ----------
    rng : numpy.random.Generator
        Where the initial weights come from.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._value = "images"
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self.trainable: list[str] = []
        self.frozen: list[str] = []

    def conv(self, name: str, inputs: int, outputs: int) -> None:
        """Add a 3x3 convolution that keeps height and width; no bias, because batch normalization follows."""
        weight = self._random(f"{name}.weight", (outputs, inputs, 3, 3), fan_in=inputs * 9)
        self._node("Conv", name, [weight], kernel_shape=[3, 3], pads=[1, 1, 1, 1])

    def batch_norm(self, name: str, channels: int) -> None:
        """Add a batch normalization.

        It is written in its training form, as exporters write a model for training: the second and
        third output are the running statistics. Those are state without a gradient, hence frozen parameters.
        """
        inputs = [
            self._weight(f"{name}.scale", np.ones(channels)),
            self._weight(f"{name}.bias", np.zeros(channels)),
            self._weight(f"{name}.running_mean", np.zeros(channels), trainable=False),
            self._weight(f"{name}.running_var", np.ones(channels), trainable=False),
        ]
        statistics = [f"{name}.new_running_mean", f"{name}.new_running_var"]
        self._node("BatchNormalization", name, inputs, statistics, momentum=0.9, training_mode=1)

    def relu(self, name: str) -> None:
        """Add max(0, x)."""
        self._node("Relu", name, [])

    def max_pool(self, name: str) -> None:
        """Add a pooling that halves height and width."""
        self._node("MaxPool", name, [], kernel_shape=[2, 2], strides=[2, 2])

    def flatten(self, name: str) -> None:
        """Flatten each image into a row."""
        self._node("Flatten", name, [], axis=1)

    def linear(self, name: str, inputs: int, outputs: int) -> None:
        """Add a fully connected layer."""
        weight = self._random(f"{name}.weight", (outputs, inputs), fan_in=inputs)
        bias = self._weight(f"{name}.bias", np.zeros(outputs))
        self._node("Gemm", name, [weight, bias], transB=1)

    def build(self, output: str, classes: int) -> onnx.ModelProto:
        """Return the model; the value of the last layer gets the name `output`."""
        self._nodes[-1].output[0] = output
        graph = helper.make_graph(
            self._nodes,
            "digits",
            [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 1, 8, 8])],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", classes])],
            self._weights,
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="digits",
        )
        onnx.checker.check_model(model, full_check=True)
        return model

    def _node(
        self,
        op_type: str,
        name: str,
        weights: list[str],
        more_outputs: list[str] | None = None,
        **attributes: Any,
    ) -> None:
        outputs = [f"{name}.out", *(more_outputs or [])]
        self._nodes.append(
            helper.make_node(op_type, [self._value, *weights], outputs, name=name, **attributes)
        )
        self._value = outputs[0]

    def _weight(self, name: str, value: np.ndarray, *, trainable: bool = True) -> str:
        self._weights.append(numpy_helper.from_array(value.astype(np.float32), name))
        (self.trainable if trainable else self.frozen).append(name)
        return name

    def _random(self, name: str, shape: tuple[int, ...], *, fan_in: int) -> str:
        # He et al., "Delving deep into rectifiers", 2015: with this variance, the activations of a network of
        # ReLUs keep their scale from layer to layer.
        return self._weight(name, self._rng.normal(0.0, np.sqrt(2.0 / fan_in), shape))


def build_model(seed: int) -> tuple[onnx.ModelProto, list[str], list[str]]:
    """Build the network with random weights.

    Parameters
    ----------
    seed : int
        Seed of the weights.

    Returns
    -------
    model : onnx.ModelProto
        From ``images``, float32 of shape [batch, 1, 8, 8], to ``logits``, float32 of shape [batch, 10].
    trainable, frozen : list of str
        Names of the weights that training changes by their gradients, and of the running statistics.
    """
    network = Network(np.random.default_rng(seed))
    inputs = 1
    for block, channels in enumerate((16, 32, 64), start=1):
        network.conv(f"conv{block}", inputs, channels)
        network.batch_norm(f"norm{block}", channels)
        network.relu(f"relu{block}")
        if block > 1:
            network.max_pool(f"pool{block}")
        inputs = channels
    network.flatten("flatten")
    network.linear("hidden", 64 * 2 * 2, 64)
    network.relu("relu4")
    network.linear("classify", 64, 10)
    return network.build("logits", classes=10), network.trainable, network.frozen
