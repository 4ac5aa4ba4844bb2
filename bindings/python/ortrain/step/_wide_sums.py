"""Sums of scattered elements in float where the elements have 16 bits.

The gradient of a row that is read often has many small terms, which a sum in 16 bits loses. Also, for float16 onnxruntime's CPU
provider has ScatterElements and ScatterND, but not their reductions.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import TensorProto

from ortrain.step._nodes import Nodes

_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def widen_sums(nodes: Nodes, types: Mapping[str, int]) -> None:
    """Put casts around nodes that add up scattered elements of 16 bits.

    Parameters
    ----------
    nodes : Nodes
        The writer of the graph.
    types : mapping of str to int
        Element types of values, as ONNX numbers them.
    """
    graph = nodes.graph
    given = list(graph.node)
    del graph.node[:]
    for node in given:
        type = types.get(node.output[0]) if _is_sum(node) else None
        if type not in _NARROW:
            graph.node.append(node)
            continue
        data, places, updates = node.input
        node.input[:] = [
            nodes.add("Cast", [data], to=TensorProto.FLOAT),
            places,
            nodes.add("Cast", [updates], to=TensorProto.FLOAT),
        ]
        result, node.output[0] = node.output[0], nodes.name(f"{node.output[0]}_wide")
        graph.node.append(node)
        nodes.add("Cast", [node.output[0]], output=result, to=type)


def _is_sum(node: onnx.NodeProto) -> bool:
    return node.op_type in ("ScatterElements", "ScatterND") and any(
        a.name == "reduction" for a in node.attribute
    )
