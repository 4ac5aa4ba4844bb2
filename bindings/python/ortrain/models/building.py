"""Building a graph: nodes in their order, and weights with the usual initial values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

try:
    import onnx
except ImportError as error:
    raise ImportError("ortrain.models needs onnx: pip install 'ortrain[artifacts]'") from error

OPSET, IR_VERSION = 17, 8


class Graph:
    """The nodes and weights of a model from one input to one output.

    Parameters
    ----------
    seed : int
        Seed of the initial weights.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._counts: dict[str, int] = {}

    def add(self, operator: str, inputs: Sequence[str], result: str = "", **attributes: Any) -> str:
        """Append a node with one output, and return the name of the output."""
        result = result or f"{operator.lower()}{self._counts.get(operator, 0) + 1}"
        return self.outputs_of(operator, inputs, [result], **attributes)[0]

    def weight(self, name: str, values: npt.NDArray[Any]) -> str:
        """Add an initializer; floating-point values become float32. Return its name."""
        values = values.astype(np.float32) if values.dtype.kind == "f" else values
        self._weights.append(onnx.numpy_helper.from_array(values, name))
        return name

    def dense(self, name: str, value: str, before: int, after: int, gain: float, result: str = "") -> str:
        """Append a fully connected layer whose weights have the variance gain / before; its bias is 0."""
        weight = self.weight(f"{name}.weight", self.rng.normal(0, np.sqrt(gain / before), (before, after)))
        return self.add("Gemm", [value, weight, self.weight(f"{name}.bias", np.zeros(after))], result)

    def conv(self, name: str, value: str, before: int, after: int, size: int, stride: int = 1) -> str:
        """Append a convolution with He's initial weights, and a bias of 0; it keeps height and width if the stride is 1."""
        scale = np.sqrt(2 / (before * size * size))
        weight = self.weight(f"{name}.weight", self.rng.normal(0, scale, (after, before, size, size)))
        bias = self.weight(f"{name}.bias", np.zeros(after))
        return self.add("Conv", [value, weight, bias], pads=[size // 2] * 4, strides=[stride, stride])

    def norm(self, name: str, value: str, channels: int) -> str:
        """Append a batch normalization in training form."""
        values = {"scale": 1, "bias": 0, "mean": 0, "var": 1}
        names = [self.weight(f"{name}.{key}", np.full(channels, float(each))) for key, each in values.items()]
        outputs = [f"{name}.out", f"{name}.new_mean", f"{name}.new_var"]
        return self.outputs_of("BatchNormalization", [value, *names], outputs, training_mode=1)[0]

    def layer_norm(self, name: str, value: str, width: int) -> str:
        """Append a normalization over the last dimension."""
        scale, bias = (
            self.weight(f"{name}.weight", np.ones(width)),
            self.weight(f"{name}.bias", np.zeros(width)),
        )
        return self.add("LayerNormalization", [value, scale, bias], axis=-1)

    def linear(self, name: str, value: str, before: int, after: int) -> str:
        """Append a fully connected layer over the last dimension, of values with any number of dimensions."""
        scale = np.sqrt(1 / before)
        weight = self.weight(f"{name}.weight", self.rng.normal(0, scale, (before, after)))
        bias = self.weight(f"{name}.bias", np.zeros(after))
        return self.add("Add", [self.add("MatMul", [value, weight]), bias])

    def heads(self, name: str, value: str, width: int, split: str) -> dict[str, str]:
        """Append the queries, keys and values of an attention layer.

        ``split`` is the initializer [0, 0, heads, width / heads]. The keys are transposed for the product with the queries.
        """
        parts = {}
        for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
            rows = self.linear(f"{name}.{part}", value, width, width)
            parts[part] = self.add("Transpose", [self.add("Reshape", [rows, split])], perm=order)
        return parts

    def outputs_of(
        self, operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> Sequence[str]:
        """Append a node with several outputs, of which those without a name are left out; return their names."""
        number = self._counts[operator] = self._counts.get(operator, 0) + 1
        self._nodes.append(
            onnx.helper.make_node(operator, inputs, outputs, f"{operator}{number}", **attributes)
        )
        return outputs

    def model(
        self,
        name: str,
        input: str,
        shape: Sequence[int | str],
        output: str,
        outputs: int,
        kind: str = "float32",
    ) -> onnx.ModelProto:
        """Return the model; ``shape`` is that of one row of the input."""
        make = onnx.helper.make_tensor_value_info
        taken = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        graph = onnx.helper.make_graph(
            self._nodes,
            name,
            [make(input, taken, ["batch", *shape])],
            [make(output, onnx.TensorProto.FLOAT, ["batch", outputs])],
            self._weights,
        )
        opsets = [onnx.helper.make_opsetid("", OPSET)]
        return onnx.helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="ortrain"
        )
