"""The frozen body of a training or eval model: the nodes that depend only on the data, separated from the trained part.

Needs ``onnx``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import onnx

from ortrain import _graph
from ortrain._graph.node_runs import inputs_of
from ortrain._support.counts import agreeing, counted

#: Operators that take most of the time of a network.
_LAYERS = frozenset(
    {
        "Attention",
        "Conv",
        "ConvTranspose",
        "FusedConv",
        "FusedGemm",
        "FusedMatMul",
        "GRU",
        "Gemm",
        "LSTM",
        "MatMul",
        "MatMulNBits",
        "MultiHeadAttention",
        "RNN",
    }
)
#: Operators at the end of the body that are left in the trained part. Dropout does nothing in an eval model.
_VIEWS = frozenset({"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_RANDOM = ("Bernoulli", "Dropout", "Multinomial", "Random")


class NoBodyError(Exception):
    """Why features cannot be cached."""


@dataclass(frozen=True)
class Split:
    """A model in two parts."""

    body: onnx.ModelProto
    """The model from the data to the features."""
    rest: onnx.ModelProto
    """The model from the features to the outputs. Parameters, and data that this part reads directly, are inputs as before."""
    features: tuple[str, ...]


def is_random(node: onnx.NodeProto) -> bool:
    """Whether a node draws random numbers. Dropout does if its input ``training_mode`` is connected."""
    if node.op_type == "Dropout" and node.domain in ("", "ai.onnx"):
        return len(node.input) > 2 and bool(node.input[2])
    return any(word in node.op_type for word in _RANDOM)


def split(model: onnx.ModelProto, data: Sequence[str], fixed: Mapping[str, npt.NDArray[Any]]) -> Split:
    """Cut a model at the last values that depend on the data alone.

    Parameters
    ----------
    model : onnx.ModelProto
        A training or eval model.
    data : sequence of str
        The inputs that are samples: all but the target.
    fixed : mapping of str to array
        The frozen parameters that no step changes.

    Raises
    ------
    NoBodyError
        When less than half of the layers depend on the data alone.
    """
    _graph.infer_shapes(model)
    constants = {tensor.name for tensor in model.graph.initializer} | set(fixed)
    features: set[str] = set()
    body: list[onnx.NodeProto] = []
    constant_nodes: list[onnx.NodeProto] = []
    rest: list[onnx.NodeProto] = []
    for node in model.graph.node:
        names = inputs_of(node)
        if is_random(node) or not all(
            name in constants or name in features or name in data for name in names
        ):
            rest.append(node)
        elif all(name in constants for name in names):
            constant_nodes.append(node)
            constants.update(node.output)
        else:
            body.append(node)
            features.update(node.output)
    layers = sum(node.op_type in _LAYERS for node in body)
    others = sum(
        node.op_type in _LAYERS for node in rest if not any(n.endswith("_grad") for n in node.output)
    )
    if not layers or layers < others:
        raise NoBodyError(
            f"{layers} of {counted(layers + others, 'layer')} {agreeing(layers, 'depends', 'depend')} on nothing that is trained"
        )
    wanted = {name for node in rest for name in inputs_of(node)} | {
        value.name for value in model.graph.output
    }
    for node in reversed(body[:]):  # then the features of a sample stay in its row
        if (
            node.op_type in _VIEWS
            and node.output[0] in wanted
            and constants.issuperset(filter(None, node.input[1:]))
        ):
            body.remove(node)
            rest.insert(0, node)
            wanted.update(filter(None, node.input))
    produced = dict.fromkeys(name for node in body for name in node.output if name in wanted)
    cut = tuple(produced)
    return Split(
        _part(model, [*constant_nodes, *body], data, fixed, cut),
        _rest(model, [*constant_nodes, *rest], data, cut),
        cut,
    )


def _needed(nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]) -> list[onnx.NodeProto]:
    """Return the nodes from which some values are computed, in the order of the graph."""
    wanted = set(outputs)
    kept = []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.output):
            kept.append(node)
            wanted.update(inputs_of(node))
    return kept[::-1]


def _part(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    data: Sequence[str],
    fixed: Mapping[str, npt.NDArray[Any]],
    outputs: Sequence[str],
) -> onnx.ModelProto:
    """Return the model from the data to the features."""
    part = _graph.without_initializers(model)
    chosen = _needed(nodes, outputs)
    read = {name for node in chosen for name in inputs_of(node)}
    del part.graph.node[:], part.graph.input[:], part.graph.output[:], part.graph.value_info[:]
    part.graph.node.extend(chosen)
    part.graph.input.extend(value for value in model.graph.input if value.name in data and value.name in read)
    part.graph.output.extend(_declared(model, name) for name in outputs)
    part.graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in read)
    part.graph.initializer.extend(
        onnx.numpy_helper.from_array(value, name) for name, value in fixed.items() if name in read
    )
    return part


def _rest(
    model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], data: Sequence[str], features: Sequence[str]
) -> onnx.ModelProto:
    """Return the model from the features to the outputs."""
    part = _graph.without_initializers(model)
    outputs = [value.name for value in model.graph.output]
    chosen = _needed(nodes, [name for name in outputs if name not in features])
    read = {name for node in chosen for name in inputs_of(node)}
    made = {name for node in chosen for name in node.output}
    for name in outputs:
        if name in features:  # an output must not be an input
            raise NoBodyError(f"output {name!r} of the model depends on nothing that is trained")
    del part.graph.node[:], part.graph.input[:], part.graph.value_info[:]
    part.graph.node.extend(chosen)
    part.graph.input.extend(_declared(model, name) for name in features)
    part.graph.input.extend(
        value for value in model.graph.input if value.name in read or value.name not in data
    )
    part.graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in read)
    part.graph.value_info.extend(value for value in model.graph.value_info if value.name in made)
    return part


def _declared(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    """Return the type of a value, and its shape if it is known."""
    declared = onnx.ValueInfoProto()
    info = _graph.find_value_info(model, name)
    if info is not None:
        declared.CopyFrom(info)
    else:
        declared.name = name
        declared.type.tensor_type.elem_type = _graph.element_type(model, name)
    return declared
