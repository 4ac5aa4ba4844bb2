"""Dropout whose mask follows from a seed that is an input of the model.

The operator Dropout draws from a generator of the runtime, so another runtime cannot repeat a run. Here the index of an element
is mixed with the seed in integers modulo the prime 2^31 - 1, in which x^5 is a permutation. The element is kept if the result
is below the kept fraction of the prime. The same seed gives the same mask on every runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import TensorProto

from ortrain.step._names import SEEDS
from ortrain.step._nodes import Nodes, Value

_PRIME = SEEDS
#: Multipliers of good linear congruential generators with this modulus: P. L'Ecuyer, "Tables of linear congruential
#: generators of different sizes and good lattice structure", 1999.
_FIRST, _SECOND = 1583458089, 784588716


def seeded(
    node: onnx.NodeProto,
    number: int,
    nodes: Nodes,
    seed: Value,
    element_type: int,
    constant: Callable[[str], np.ndarray | None],
) -> None:
    """Write a Dropout node in training mode with a mask that follows from the seed.

    Parameters
    ----------
    node : onnx.NodeProto
        The node. Its outputs keep their names.
    number : int
        Distinguishes the masks of the nodes of a model.
    nodes : Nodes
        Adds the nodes.
    seed : Value
        The seed, an int64 in [0, 2^31 - 1).
    element_type : int
        The element type of the data.
    constant : callable
        Returns the value of a constant, or None.

    Raises
    ------
    ValueError
        When the node's ratio or mode is not a constant.
    """
    data, mask_name = node.input[0], node.output[1] if len(node.output) > 1 else ""
    ratio, training = _setting(node, 1, 0.5, constant), bool(_setting(node, 2, False, constant))
    output = nodes.graph.node
    if not training or ratio == 0:
        output.append(onnx.helper.make_node("Identity", [data], [node.output[0]], name=node.name))
        if mask_name:
            shape = nodes.add("Shape", [data])
            ones = nodes.add("Expand", [nodes.constant(np.array(True)), shape])
            output.append(
                onnx.helper.make_node("Identity", [ones], [mask_name], name=nodes.name("step/mask"))
            )
        return
    integer = TensorProto.INT64
    size = nodes.add("Size", [data])
    zero, one = nodes.constant(np.array(0, np.int64)), nodes.constant(np.array(1, np.int64))
    place = nodes.value(nodes.add("Range", [zero, size, one]), integer)
    prime = place.number(_PRIME)
    # The increment follows from the seed and the node's number, so that masks of two seeds or nodes are not shifts of each other.
    start = _mixed(((seed + float(number)) * _SECOND + (number + 1)).call("Mod", prime), prime)
    mixed = _mixed(((place + 1) * _FIRST + start).call("Mod", prime), prime)
    mixed = _mixed((mixed * _SECOND + start).call("Mod", prime), prime)
    below = nodes.add("Less", [mixed, mixed.number(round(_PRIME * (1 - ratio)))])
    kept = nodes.add("Reshape", [below, nodes.add("Shape", [data])], output=mask_name or None)
    scaled = Value(nodes, data, element_type) * (1 / (1 - ratio))
    nothing = scaled.number(0.0)
    output.append(
        onnx.helper.make_node("Where", [kept, scaled.name, nothing.name], [node.output[0]], name=node.name)
    )


def _mixed(value: Value, prime: Value) -> Value:
    """Return the fifth power modulo the prime."""
    square = (value * value).call("Mod", prime)
    return ((square * square).call("Mod", prime) * value).call("Mod", prime)


def _setting(
    node: onnx.NodeProto, index: int, default: float, constant: Callable[[str], np.ndarray | None]
) -> float:
    if len(node.input) <= index or not node.input[index]:
        return default
    value = constant(node.input[index])
    if value is None:
        raise ValueError(
            f"node {node.name or node.output[0]!r} (Dropout): its input {node.input[index]!r} must be a constant"
        )
    return float(value)


def constants_of(graph: onnx.GraphProto) -> Callable[[str], np.ndarray | None]:
    """Return a function from the name of a constant to its value."""
    known: Mapping[str, onnx.TensorProto] = {tensor.name: tensor for tensor in graph.initializer} | {
        node.output[0]: node.attribute[0].t
        for node in graph.node
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value"
    }
    return lambda name: onnx.numpy_helper.to_array(known[name]) if name in known else None
