"""Finding the classifier of a model: the last layer with weights before an output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from ortrain import _graph
from ortrain._support.counts import counted
from ortrain.artifacts.choice.export_record import module_of

#: Operators that turn scores into probabilities.
ACTIVATIONS = frozenset({"LogSoftmax", "Sigmoid", "Softmax"})
#: Operators between a classifier and an output: they copy, choose or average scores.
_CARRIERS = frozenset(
    {
        "AveragePool",
        "Cast",
        "Dropout",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "Identity",
        "MaxPool",
        "ReduceMax",
        "ReduceMean",
        "Relu",
        "Reshape",
        "Slice",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)
_POOLING = frozenset(
    {"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMean"}
)
#: Layers with quantized weights, and the index of the input with the bias. The inputs before it are the input of the layer, the
#: codes of the weights, scales, and zero points.
QUANTIZED = {"DynamicQuantizeMatMul": 4, "MatMulNBits": 5}
#: Layers with weights, and the index of the input with the weights. The classes are in the last dimension of the weights of
#: MatMul, in the first dimension of those of Conv, and in either dimension of those of Gemm. MatMulNBits has attributes with
#: the shape of its weights before quantization.
_LAYERS = {"Conv": 1, "Gemm": 1, "MatMul": 1} | dict.fromkeys(QUANTIZED, 1)


@dataclass(frozen=True)
class Classifier:
    """The layer that computes the scores of classes, in the model that it was found in."""

    node: onnx.NodeProto
    """Gemm, MatMul or Conv, or a product with quantized weights."""
    bias: tuple[onnx.NodeProto, int] | None
    """The node that adds the bias, which is the layer itself or an Add, and the index of the input with the bias."""
    weight_shape: tuple[int, ...]
    bias_shape: tuple[int, ...]
    class_axis: int
    """The dimension of the weights along which the classes are."""
    carriers: tuple[onnx.NodeProto, ...]
    """The nodes between the layer, or the Add of its bias, and the output, in the order of their execution."""
    output: str
    """The output of the model."""

    @property
    def classes(self) -> int:
        """The number of classes so far."""
        return self.weight_shape[self.class_axis]

    @property
    def features(self) -> int:
        """The number of elements that a score is computed from."""
        return int(np.prod(self.weight_shape)) // self.classes

    @property
    def name(self) -> str:
        """The path of the module, or the name of the node."""
        return module_of(self.node) or self.node.name or self.node.output[0]


class _NoClassifierError(Exception):
    """Why an output does not end in a classifier."""


def find_classifier(model: onnx.ModelProto, output: str | None = None) -> Classifier:
    """Return the classifier that computes an output.

    Parameters
    ----------
    model : onnx.ModelProto
        The model with the shapes of its values.
    output : str, optional
        The output, or another value; the first floating-point output by default.

    Raises
    ------
    ValueError
        When there is none, naming the node that is in the way and outputs that do end in a classifier.
    """
    outputs = [value.name for value in model.graph.output if _is_floating(model, value.name)]
    chosen = output if output is not None else next(iter(outputs), None)
    if chosen is None:
        raise ValueError(
            "head: expected a model with a floating-point output, which a classifier computes; found none"
        )
    try:
        return _classifier_of(model, chosen)
    except _NoClassifierError as reason:
        others = []
        for name in outputs:
            try:
                found = _classifier_of(model, name)
            except _NoClassifierError:
                continue
            others.append(f"{name} ({found.node.op_type} {found.name})")
        remedy = (
            f"; outputs that end in a classifier: {', '.join(others)}; name one in loss_input_names (--output)"
            if others
            else f"; the model computes {', '.join(outputs)}"
        )
        raise ValueError(
            f"head: expected output {chosen!r} to come from a classifier: Gemm, MatMul with weights or Conv 1x1, followed by "
            f"at most a bias, pooling, reshaping and Softmax, LogSoftmax or Sigmoid; found {reason}{remedy}"
        ) from None


def _is_floating(model: onnx.ModelProto, name: str) -> bool:
    return _graph.element_type(model, name) in _graph.FLOATING


def _classifier_of(model: onnx.ModelProto, output: str) -> Classifier:
    producers = {name: node for node in model.graph.node for name in node.output}
    constants = Constants(model, producers)
    carriers: list[onnx.NodeProto] = []
    bias: tuple[onnx.NodeProto, int] | None = None
    value = output
    while True:
        node = producers.get(value)
        if node is None:
            raise _NoClassifierError(f"no layer between input {value!r} and the output")
        if node.domain not in ("", "ai.onnx") and node.op_type not in QUANTIZED:
            raise _NoClassifierError(_described(node))
        if node.op_type in _CARRIERS or node.op_type in ACTIVATIONS:
            carriers.append(node)
            value = node.input[0]
            continue
        added = next((slot for slot in range(len(node.input)) if constants.has(node.input[slot])), None)
        if node.op_type == "Add" and added is not None and bias is None:
            bias = node, added
            value = node.input[1 - added]
            continue
        return _checked(model, node, bias, constants, carriers, output)


def _checked(
    model: onnx.ModelProto,
    node: onnx.NodeProto,
    bias: tuple[onnx.NodeProto, int] | None,
    constants: Constants,
    carriers: list[onnx.NodeProto],
    output: str,
) -> Classifier:
    """Return the classifier that consists of a node, the last one that does more than copy, choose or average scores."""
    slot = _LAYERS.get(node.op_type)
    if slot is None:
        raise _NoClassifierError(_described(node))
    if not constants.has(node.input[slot]):
        raise _NoClassifierError(
            f"{_described(node)}, whose second input {node.input[slot]!r} depends on the input of the model"
        )
    shape = constants.shape(node.input[slot])
    if shape is None:
        raise _NoClassifierError(f"{_described(node)}, whose weights have an unknown shape")
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "MatMulNBits":
        shape = attributes["K"], attributes["N"]
    own = {"Conv": 2, "Gemm": 2, **QUANTIZED}.get(node.op_type)
    if bias is None and own is not None and len(node.input) > own and node.input[own]:
        bias = node, own
    axis = {"Conv": 0, "MatMul": len(shape) - 1}.get(node.op_type, 0 if attributes.get("transB") else 1)
    if node.op_type == "Conv" and (any(dim != 1 for dim in shape[2:]) or attributes.get("group", 1) != 1):
        kernel = "x".join(map(str, shape[2:]))
        raise _NoClassifierError(
            f"{_described(node)}, a convolution of kernel {kernel} in {counted(attributes.get('group', 1), 'group')}"
        )
    if node.op_type in ("MatMul", "DynamicQuantizeMatMul") and len(shape) != 2:
        raise _NoClassifierError(f"{_described(node)}, whose weights have {counted(len(shape), 'dimension')}")
    bias_shape: tuple[int, ...] = ()
    if bias is not None:
        bias_shape = constants.shape(bias[0].input[bias[1]]) or ()
        if bias_shape.count(shape[axis]) != 1 or int(np.prod(bias_shape)) != shape[axis]:
            raise _NoClassifierError(
                f"{_described(bias[0])}, which adds a constant of shape {list(bias_shape)} to the scores of "
                f"{counted(shape[axis], 'class')}"
            )
    return Classifier(node, bias, shape, bias_shape, axis, tuple(reversed(carriers)), output)


def _described(node: onnx.NodeProto) -> str:
    return f"node {node.name or node.output[0]} ({node.op_type})"


class Constants:
    """Which values of a model do not depend on its inputs."""

    def __init__(self, model: onnx.ModelProto, producers: dict[str, onnx.NodeProto]) -> None:
        self._shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
        self._model, self._producers = model, producers

    def has(self, name: str) -> bool:
        """Whether a value is an initializer, or computed from initializers alone."""
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            value = waiting.pop()
            node = self._producers.get(value)
            if value in self._shapes or value in seen:
                continue
            if node is None or node.op_type.startswith("Random") or any(_graph.graphs_in(node)):
                return False
            seen.add(value)
            waiting.extend(other for other in node.input if other)
        return True

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a constant; None if it is not known."""
        if name in self._shapes:
            return self._shapes[name]
        node = self._producers[name]
        tensor = _graph.floating_tensor(node)
        if tensor is not None:
            return tuple(tensor.dims)
        info = _graph.find_value_info(self._model, name)
        if info is not None and info.type.tensor_type.HasField("shape"):
            dims = info.type.tensor_type.shape.dim
            if all(dim.HasField("dim_value") for dim in dims):
                return tuple(dim.dim_value for dim in dims)
        return None


def pooling_of(nodes: Sequence[onnx.NodeProto]) -> str | None:
    """Return the first pooling among nodes."""
    return next((node.op_type for node in nodes if node.op_type in _POOLING), None)
