"""Quantization to 8 bits: pairs of QuantizeLinear and DequantizeLinear on the weights and inputs of layers.

B. Jacob et al., "Quantization and training of neural networks for efficient integer-arithmetic-only inference", 2018. Weights
become signed bytes with a zero point of 0 and a scale for each output channel, or one for the tensor; every step computes the
scales from the weights. Activations become unsigned bytes, whose scale and zero point are computed from the range that the
operator ObserveRange keeps. The gradients of QuantizeLinear are straight-through. An exported model has the scales as constants
and the weights as bytes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from ortrain import _graph
from ortrain._graph.evaluation import set_evaluation_mode
from ortrain.inference_session import InferenceSession

_PREFIX = "int8/"  # names of nodes and values that quantization adds begin with this
_OPSET = 13  # the first opset with a scale for each channel


@dataclass(frozen=True)
class Int8:
    """How weights and activations are quantized to 8 bits.

    Parameters
    ----------
    weights : {"per_channel", "per_tensor"}, default "per_channel"
        Whether each output channel of a weight has a scale, or the whole weight.
    activations : {"moving_average"}, default "moving_average"
        How the range of activations is found: a moving average over the train steps of the smallest and largest value.
    momentum : float, default 0.99
        The fraction of the range that each step keeps.
    exclude : sequence of str, default ()
        Weights that are not quantized: names or patterns such as ``"head.*"``.
    reduce_range : bool, default True
        Whether weights are bytes from -63 to 63 rather than from -127 to 127. On x86-64 processors without VNNI, onnxruntime
        adds products of bytes in pairs in 16 bits, and larger weights make these sums saturate: scores then are wrong, unless
        its session has ``session.x64quantprecision``. Processors of phones have no such sums.

    Raises
    ------
    ValueError
        When a value is not one of these.
    """

    weights: str = "per_channel"
    activations: str = "moving_average"
    momentum: float = 0.99
    exclude: Sequence[str] = ()
    reduce_range: bool = True

    def __post_init__(self) -> None:
        """Check the values."""
        if self.weights not in ("per_channel", "per_tensor"):
            raise ValueError(f"weights: expected per_channel or per_tensor, found {self.weights!r}")
        if self.activations != "moving_average":
            raise ValueError(f"activations: expected moving_average, found {self.activations!r}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum: expected at least 0 and less than 1, found {self.momentum}")


def _channel_axis(node: onnx.NodeProto, rank: int) -> int:
    """Return the dimension of a layer's weight with the output channels."""
    if node.op_type == "Conv":
        return 0
    if node.op_type == "Gemm":
        return 0 if any(a.name == "transB" and a.i for a in node.attribute) else 1
    return rank - 1


class _Quantizer:
    """Adds pairs to a model."""

    def __init__(self, model: onnx.ModelProto, settings: Int8) -> None:
        self._model, self._settings = model, settings
        self._opset = _graph.opset_of(model) or 0
        self._weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self._added: list[onnx.NodeProto] = []  # nodes to insert before the current node
        self._pairs: dict[tuple[str, int | None], str] = {}

    def run(self) -> list[str]:
        """Add the pairs, and return the values whose range is observed."""
        nodes: list[onnx.NodeProto] = []
        for node in self._model.graph.node:
            weight = self._weight_of(node)
            if weight is not None:
                axis = (
                    _channel_axis(node, len(weight.dims)) if self._settings.weights == "per_channel" else None
                )
                node.input[1] = self._of_weight(weight, axis)
                if node.input[0] not in self._weights:
                    node.input[0] = self._of_activation(node.input[0])
            nodes += [*self._added, node]
            self._added = []
        if not self._pairs:
            raise ValueError(
                "quantization: expected a Conv, Gemm or MatMul with a float32 weight among the initializers, found none"
            )
        del self._model.graph.node[:]
        self._model.graph.node.extend(nodes)
        _graph.import_domain(self._model, "ortrain", 1)
        return [name for name, axis in self._pairs if name not in self._weights]

    def _weight_of(self, node: onnx.NodeProto) -> onnx.TensorProto | None:
        if node.domain not in ("", "ai.onnx") or node.op_type not in ("Conv", "Gemm", "MatMul"):
            return None
        weight = self._weights.get(node.input[1])
        if weight is None or weight.data_type != TensorProto.FLOAT or len(weight.dims) < 2:
            return None
        return None if any(fnmatchcase(weight.name, p) for p in self._settings.exclude) else weight

    def _add(
        self, operator: str, inputs: Sequence[str], name: str, domain: str = "", **attributes: Any
    ) -> str:
        output = f"{_PREFIX}{name}"
        self._added.append(
            helper.make_node(operator, inputs, [output], name=output, domain=domain, **attributes)
        )
        return output

    def _constant(self, value: Any, name: str) -> str:
        name = f"{_PREFIX}{name}"
        if name not in self._weights:
            tensor = numpy_helper.from_array(np.asarray(value), name)
            self._weights[name] = tensor
            self._model.graph.initializer.append(tensor)
        return name

    def _typed(self, name: str, shape: Sequence[int]) -> str:
        """Declare the type of a value whose operator ONNX does not have."""
        info = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        self._model.graph.value_info.append(info)
        return name

    def _pair(self, name: str, scale: str, zero: str, **attributes: Any) -> str:
        whole = self._add("QuantizeLinear", [name, scale, zero], f"{name}/quantized", **attributes)
        return self._add("DequantizeLinear", [whole, scale, zero], f"{name}/dequantized", **attributes)

    def _of_weight(self, weight: onnx.TensorProto, axis: int | None) -> str:
        name = weight.name
        if (name, axis) in self._pairs:
            return self._pairs[name, axis]
        own = name if axis is None else f"{name}/{axis}"
        fixed = self._typed(self._add("StopGradient", [name], f"{own}/fixed", "ortrain"), weight.dims)
        magnitude = self._add("Abs", [fixed], f"{own}/magnitude")
        others = [] if axis is None else [i for i in range(len(weight.dims)) if i != axis]
        inputs = [magnitude]
        attributes: dict[str, Any] = {}
        if others and self._opset >= 18:
            inputs.append(self._constant(np.array(others, np.int64), f"axes {others}"))
        elif others:
            attributes["axes"] = others
        largest = self._add("ReduceMax", inputs, f"{own}/largest", keepdims=0, **attributes)
        least = self._constant(np.float32(1e-12), "least")
        positive = self._add("Max", [largest, least], f"{own}/positive")
        most = 63 if self._settings.reduce_range else 127
        scale = self._add("Div", [positive, self._constant(np.float32(most), str(most))], f"{own}/scale")
        channels = () if axis is None else (weight.dims[axis],)
        zero = self._constant(np.zeros(channels, np.int8), f"zero {list(channels)}")
        pair = self._pair(name, scale, zero, **({} if axis is None else {"axis": axis}))
        self._pairs[name, axis] = pair
        return pair

    def _of_activation(self, name: str) -> str:
        if (name, None) in self._pairs:
            return self._pairs[name, None]
        span = self._constant(np.zeros(2, np.float32), f"{name}/range")
        momentum = self._settings.momentum
        observed = self._typed(
            self._add("ObserveRange", [name, span], f"{name}/observed", "ortrain", momentum=momentum), [2]
        )
        nothing = self._constant(np.zeros(1, np.float32), "nothing")
        around = self._add("Concat", [observed, nothing], f"{name}/around zero", axis=0)
        low = self._add("ReduceMin", [around], f"{name}/low", keepdims=0)
        high = self._add("ReduceMax", [around], f"{name}/high", keepdims=0)
        width = self._add("Sub", [high, low], f"{name}/width")
        step = self._add("Div", [width, self._constant(np.float32(255), "255")], f"{name}/step")
        least = self._constant(np.float32(1e-12), "least")
        scale = self._add("Max", [step, least], f"{name}/scale")
        shifted = self._add("Div", [self._add("Neg", [low], f"{name}/shift"), scale], f"{name}/steps to zero")
        rounded = self._add("Round", [shifted], f"{name}/rounded")
        zero = self._add("Cast", [rounded], f"{name}/zero", to=TensorProto.UINT8)
        self._pairs[name, None] = self._pair(name, scale, zero)
        return self._pairs[name, None]


def with_observers(model: onnx.ModelProto, settings: Int8) -> onnx.ModelProto:
    """Return a model that learns to compensate for its quantization.

    Raises
    ------
    TypeError
        When the settings are not an `Int8`.
    ValueError
        When its opset is too old, or it has no layer to quantize.
    """
    if not isinstance(settings, Int8):
        raise TypeError(f"qat: expected ortrain.artifacts.Int8(), found {settings!r}")
    opset = _graph.opset_of(model) or 0
    if opset < _OPSET:
        raise ValueError(
            f"quantization: expected a model of opset {_OPSET} or later, which has a scale for each channel, found {opset}"
        )
    made = copy.deepcopy(model)
    _Quantizer(made, settings).run()
    return made


def with_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return an exported model with constant scales and zero points, and with weights as bytes."""
    made = copy.deepcopy(model)
    graph = made.graph
    known = {tensor.name for tensor in graph.initializer}
    folded = []
    for node in graph.node:
        if (
            node.name.startswith(_PREFIX)
            and node.op_type != "DequantizeLinear"
            and all(name in known for name in node.input)
        ):
            folded.append(node)
            known.update(node.output)
    inner = {name for node in folded for name in node.output}
    gone = {node.name for node in folded}
    kept = [node for node in graph.node if node.name not in gone]
    read = {name for node in _graph.walk(graph) if node.name not in gone for name in node.input}
    wanted = sorted(inner & read)
    computed = helper.make_graph(
        folded,
        "constants",
        [],
        [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in wanted],
        list(graph.initializer),
    )
    evaluator = ReferenceEvaluator(
        helper.make_model(computed, opset_imports=made.opset_import, ir_version=made.ir_version)
    )
    values = dict(zip(wanted, evaluator.run(None, {}), strict=True)) if wanted else {}
    tensors = [tensor for tensor in graph.initializer if tensor.name in read]
    tensors += [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(kept)
    graph.initializer.extend(tensors)
    infos = [info for info in graph.value_info if info.name not in inner]
    del graph.value_info[:]
    graph.value_info.extend(infos)
    used = {node.domain for node in kept}
    imports = [
        opset for opset in made.opset_import if opset.domain in used or opset.domain in ("", "ai.onnx")
    ]
    del made.opset_import[:]
    made.opset_import.extend(imports)
    return made


def quantize_static(
    model: onnx.ModelProto, batches: Iterable[Mapping[str, Any]], settings: Int8 | None = None
) -> onnx.ModelProto:
    """Quantize a trained model without training it again: post-training quantization.

    The range of an activation is that of all batches.

    Parameters
    ----------
    model : onnx.ModelProto
        The model.
    batches : iterable of mapping of str to array
        Inputs by name that are typical of those that the model will see; a few hundred rows are enough.
    settings : Int8, optional
        What is quantized.

    Returns
    -------
    onnx.ModelProto
        The model with pairs of QuantizeLinear and DequantizeLinear, for any runtime of ONNX.

    Raises
    ------
    ValueError
        When there are no batches, the opset is too old, or there is no layer to quantize.
    """
    made = with_observers(model, settings or Int8())
    observed = {
        node.input[0]: node.input[1]
        for node in made.graph.node
        if node.op_type == "ObserveRange" and node.domain == "ortrain"
    }
    probe = copy.deepcopy(model)
    inputs = {value.name for value in probe.graph.input}
    inner = [
        name for name in observed if name not in inputs and name not in {o.name for o in probe.graph.output}
    ]
    probe.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in inner)
    session = InferenceSession(probe.SerializeToString())
    ranges: dict[str, tuple[float, float]] = {}
    within = [name for name in observed if name not in inputs]
    for batch in batches:
        found = dict(zip(within, session.run(within, dict(batch)), strict=True)) if within else {}
        for name in observed:
            value = np.asarray(found[name] if name in found else batch[name])
            low, high = ranges.get(name, (np.inf, -np.inf))
            ranges[name] = (min(low, float(value.min())), max(high, float(value.max())))
    if not ranges:
        raise ValueError("quantize_static: expected at least one batch, found none")
    for tensor in made.graph.initializer:
        for name, span in observed.items():
            if tensor.name == span:
                tensor.CopyFrom(numpy_helper.from_array(np.array(ranges[name], np.float32), span))
    set_evaluation_mode(made)
    return with_constants(made)
