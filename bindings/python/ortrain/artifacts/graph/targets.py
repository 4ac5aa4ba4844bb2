"""Which layers of a model a target of adapters names."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any

import onnx

from ortrain import _graph
from ortrain.artifacts.choice.export_record import PATH, module_in, module_of
from ortrain.artifacts.graph.classifier import find_classifier

#: The entry for all matrix products with weights, except one that computes the output.
ALL_LINEAR = "all-linear"
#: Layers, and the index of the input with their weights.
WEIGHTS = {
    "Conv": 1,
    "DynamicQuantizeMatMul": 1,
    "FusedMatMul": 1,
    "Gather": 0,
    "GatherBlockQuantized": 0,
    "Gemm": 1,
    "MatMul": 1,
    "MatMulBnb4": 1,
    "MatMulNBits": 1,
    "TransposeMatMul": 1,
}
#: Layers that look up rows of a matrix.
LOOK_UPS = frozenset({"Gather", "GatherBlockQuantized"})
LINEAR = frozenset(WEIGHTS) - LOOK_UPS - {"Conv"}
#: Operators between an initializer and the layer that reads it.
COPIES = ("Cast", "DequantizeLinear", "Identity", "Transpose")

#: Operators that scale the result of the last layer.
_SCALINGS = frozenset({"Cast", "Div", "Identity", "Mul"})

_INTEGERS = "its input is quantized, and the matrix A of an adapter needs floating-point numbers"
_NOT_TRAINED = "the training core does not have the operator"
#: Operators with weights that cannot have an adapter: the index of the input with the weights, and the reason.
WITHOUT_ADAPTERS = {
    "ConvInteger": (1, _INTEGERS),
    "DecoderAttention": (2, _NOT_TRAINED),
    "DecoderMaskedSelfAttention": (1, _NOT_TRAINED),
    "GatedRelativePositionBias": (3, _NOT_TRAINED),
    "LongformerAttention": (1, _NOT_TRAINED),
    "MatMulFpQ4": (1, _NOT_TRAINED),
    "MatMulInteger": (1, _INTEGERS),
    "MatMulIntegerToFloat": (1, _INTEGERS),
    "MoE": (2, _NOT_TRAINED),
    "NhwcConv": (1, _NOT_TRAINED),
    "NhwcFusedConv": (1, _NOT_TRAINED),
    "PackedAttention": (1, _NOT_TRAINED),
    "QAttention": (1, _INTEGERS),
    "QEmbedLayerNormalization": (
        2,
        "its tables are quantized; EmbedLayerNormalization, whose tables are float, can have an adapter",
    ),
    "QGemm": (3, _INTEGERS),
    "QLinearConv": (3, _INTEGERS),
    "QLinearMatMul": (3, _INTEGERS),
    "QMoE": (2, _NOT_TRAINED),
    "QOrderedAttention": (5, _NOT_TRAINED),
    "QOrderedMatMul": (2, _NOT_TRAINED),
}


def fits(entry: str, names: Collection[str]) -> bool:
    """Whether a target is a pattern for one of the names of a layer, a module around it, or the end of its path."""
    return any(
        fnmatchcase(name, entry) or name.startswith(f"{entry}.") or name.endswith(f".{entry}")
        for name in names
        if name
    )


def path_of(
    node: onnx.NodeProto,
    weights: str,
    producers: Mapping[str, onnx.NodeProto],
    readers: Mapping[str, Collection[str]] | None = None,
) -> str:
    """Return the path of the module of a layer: that of its weights, of the node or of its output; else the node's name.

    Weights that several modules share have the path of one of them. The layers of the others have the path of their node, if
    `readers` has the modules whose nodes read each value. onnxruntime's optimizer keeps the names of what a fused node returns,
    which have the path where node and weights have none.
    """
    name = weights
    while True:
        if PATH.fullmatch(name):
            path, own = name.rpartition(".")[0], module_of(node)
            return own if own is not None and path in (readers or {}).get(name, ()) else path
        source = producers.get(name)
        if source is None or source.op_type not in COPIES:
            return module_of(node) or module_in(node.output[0]) or node.name or node.output[0]
        name = str(source.input[0])


def readers_of(model: onnx.ModelProto) -> dict[str, set[str]]:
    """Return the modules whose nodes read each value, or a copy of it."""
    readers: dict[str, set[str]] = {}
    sources = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type in COPIES}
    for node in model.graph.node:
        module = module_of(node)
        for read in node.input if module is not None else ():
            name: str | None = read
            while name is not None:
                readers.setdefault(name, set()).add(str(module))
                name = sources.get(name)
    return readers


def heads_of(model: onnx.ModelProto) -> set[str]:
    """Return what the layers compute whose results are outputs of the model, as they are, scaled, capped or with a bias."""
    outputs = {value.name for value in model.graph.output}
    ends = set(outputs)
    constants = {tensor.name for tensor in model.graph.initializer}
    constants |= {node.output[0] for node in model.graph.node if node.op_type == "Constant"}
    for node in reversed(model.graph.node):
        computed = [name for name in node.input if name and name not in constants]
        # A Tanh in front of a factor caps scores; at the end it is an activation.
        passes = node.op_type in _SCALINGS or (node.op_type == "Tanh" and node.output[0] not in outputs)
        if passes and len(computed) == 1 and node.output[0] in ends:
            ends |= set(computed)
    heads = {name for node in model.graph.node for name in node.output if name in ends}
    heads |= {
        name
        for node in model.graph.node
        if node.op_type == "Add" and node.output[0] in ends
        for name in node.input
    }
    try:
        return heads | {find_classifier(model).node.output[0]}
    except ValueError:
        return heads


def decoded_look_ups(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    """Return the nodes that decode looked-up codes, by the result of the look-up.

    onnxruntime's ``quantize_dynamic`` writes an embedding as a Gather of codes and a DequantizeLinear of the rows.
    """
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    reads = Counter(name for node in _graph.walk(model.graph) for name in node.input)
    reads.update(value.name for value in model.graph.output)
    look_ups = {
        node.output[0]
        for node in model.graph.node
        if node.op_type == "Gather"
        and node.input[0] in tensors
        and tensors[node.input[0]].data_type not in _graph.FLOATING
        and reads[node.output[0]] == 1
    }
    return {
        node.input[0]: node
        for node in model.graph.node
        if node.op_type == "DequantizeLinear"
        and node.input[0] in look_ups
        and all(name in tensors and math.prod(tensors[name].dims) == 1 for name in node.input[1:] if name)
    }


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    """Return the attributes of a node by name."""
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
