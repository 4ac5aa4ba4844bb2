"""Which results of a step may be written into the memory of the values that they replace."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from ortrain import _graph

#: Operators that compute an element of the result from the elements at the same place.
_ELEMENTWISE = {"Add", "Div", "Identity", "Mul", "Sub", "Where"}
#: Operators that do not read the elements.
_OF_SHAPES = {"Shape", "Size"}
#: Operators whose result a runtime may keep in the memory of their input.
_VIEWS = {"Cast", "Dropout", "Flatten", "Identity", "Reshape", "Split", "Squeeze", "Unsqueeze"}


def in_place(graph: onnx.GraphProto, state: Mapping[str, str]) -> list[str]:
    """Return the inputs whose memory may be that of the outputs that replace them.

    An input qualifies if every node that reads it must run before the node that computes the output, in any order that a
    runtime may choose. The node that computes the output may read the input too, if it computes element by element.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph.
    state : mapping of str to str
        The outputs by the inputs that they replace.
    """
    nodes = list(graph.node)
    made_by = {name: at for at, node in enumerate(nodes) for name in node.output}
    reads = [_reads(node) for node in nodes]
    readers: dict[str, list[int]] = {}
    before: list[int] = []  # for each node, the nodes that must run before it, as bits
    for at, names in enumerate(reads):
        earlier = 0
        for name in names:
            readers.setdefault(name, []).append(at)
            if name in made_by:
                earlier |= before[made_by[name]] | 1 << made_by[name]
        before.append(earlier)
    return [name for name, after in state.items() if _is_free(name, after, nodes, made_by, readers, before)]


def _reads(node: onnx.NodeProto) -> set[str]:
    """Return the values that a node reads, and the graphs inside it."""
    inner = (a.g for a in node.attribute if a.HasField("g"))
    return {*node.input, *(name for graph in inner for each in _graph.walk(graph) for name in each.input)}


def _is_in_place(node: onnx.NodeProto, name: str) -> bool:
    """Return whether a node reads each element of a value only for the element of the result at the same place."""
    # The addend of a Gemm has the shape of the result, because the result replaces this state.
    return node.op_type in _ELEMENTWISE or (node.op_type == "Gemm" and name not in node.input[:2])


def _is_free(
    name: str,
    after: str,
    nodes: list[onnx.NodeProto],
    made_by: Mapping[str, int],
    readers: Mapping[str, list[int]],
    before: list[int],
) -> bool:
    if after not in made_by:
        return False
    writer = made_by[after]
    waiting, seen = [name], {name}
    while waiting:
        value = waiting.pop()
        for at in readers.get(value, []):
            node = nodes[at]
            if node.op_type in _OF_SHAPES:
                continue
            if at == writer:
                if value != name or not _is_in_place(node, name):
                    return False
                continue
            if not before[writer] >> at & 1:
                return False
            if node.op_type in _VIEWS or any(a.HasField("g") for a in node.attribute):
                waiting += [output for output in node.output if output not in seen]
                seen.update(node.output)
    return True
