"""The operators, element types and depthwise convolutions of a model, for builds of the library with only these.

The scripts in cmake/ import this file without the package, so this file imports nothing from the package.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

PARTS_FOR_TYPES = {"doubles": {11}, "halves": {10, 16}, "small_integers": {3, 4, 5, 12, 13}}
"""Parts of the library, and the element types, as numbers of TensorProto.DataType, whose kernels they contain (`part_of` in
dtype.h)."""


PARTS_FOR_MODELS = (*PARTS_FOR_TYPES, "depthwise")
"""Parts without calls of their own, which a library needs if a model does (`parts_for`)."""


def operators_in(model: Any) -> Iterator[str]:
    """Yield the operators of a model and of its subgraphs and functions, prefixed with the domain unless it is ONNX's.

    Nodes of optimizers yield their optimizer too: ortrain.Optimizer.lion.
    """
    for node in _nodes(model):
        domain = "" if node.domain == "ai.onnx" else node.domain
        yield f"{domain}.{node.op_type}" if domain else node.op_type
        if (domain, node.op_type) == ("ortrain", "Optimizer"):
            yield from (f"ortrain.Optimizer.{a.s.decode()}" for a in node.attribute if a.name == "type")


def parts_for(model: Any) -> set[str]:
    """Return the parts of the library that the element types and convolutions of a model need.

    A convolution with groups counts as depthwise, because the shape of its weights may be unknown.
    """
    types = set(_types(model))
    parts = {part for part, of_part in PARTS_FOR_TYPES.items() if types & of_part}
    groups = (a for node in _nodes(model) for a in node.attribute if a.name == "group")
    return parts | ({"depthwise"} if any(a.i > 1 or a.ref_attr_name for a in groups) else set())


def _nodes(model: Any) -> Iterator[Any]:
    for nodes in [model.graph.node, *(function.node for function in model.functions)]:
        yield from _with_subgraphs(nodes)


def _with_subgraphs(nodes: Iterable[Any]) -> Iterator[Any]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in [attribute.g, *attribute.graphs]:
                yield from _with_subgraphs(graph.node)


def _types(model: Any) -> Iterator[int]:
    """Yield the types of values, initializers and attributes."""
    graphs = [model.graph]
    for node in _nodes(model):
        for attribute in node.attribute:
            graphs += [attribute.g, *attribute.graphs]
            if attribute.name in ("to", "dtype"):
                yield attribute.i
            yield attribute.t.data_type
    for graph in graphs:
        for value in [*graph.input, *graph.output, *graph.value_info]:
            yield value.type.tensor_type.elem_type
        for tensor in graph.initializer:
            yield tensor.data_type
