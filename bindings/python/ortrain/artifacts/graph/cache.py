"""Language models without their key-value cache.

An exported decoder has inputs with the keys and values of earlier tokens, and returns them together with those of the new
tokens. Training reads whole texts, so no token is earlier.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx

from ortrain import _graph
from ortrain._graph.initializers import add_initializer, free_name, is_read

_PAST, _PRESENT = "past", "present"  # how the names of inputs and outputs begin

#: Operators that append to a cache themselves, and their optional inputs for earlier keys and values.
_APPENDING = {
    ("", "Attention"): (4, 5),
    ("com.microsoft", "GroupQueryAttention"): (3, 4),
    ("com.microsoft", "MultiHeadAttention"): (6, 7),
}


def cache_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs of a model with the keys and values of earlier tokens.

    They have names that begin with "past", floating-point numbers, and at least three dimensions. The number of tokens is a free
    dimension.
    """
    valued = {tensor.name for tensor in graph.initializer}
    return [
        value
        for value in graph.input
        if value.name.startswith(_PAST)
        and value.name not in valued
        and value.type.tensor_type.elem_type in _graph.FLOATING
        and len(value.type.tensor_type.shape.dim) > 2
        and any(not dim.dim_value for dim in value.type.tensor_type.shape.dim[1:])
    ]


def remove_cache(model: onnx.ModelProto) -> list[str]:
    """Remove the key-value cache of a model in place, and return the names of the inputs that it had.

    Where a node appends keys to those of earlier tokens, the keys alone remain. Operators of attention lose their inputs for
    earlier keys and values; other nodes read those of no tokens. The outputs with keys and values are removed.
    """
    graph = model.graph
    removed = {value.name: value for value in cache_inputs(graph)}
    if not removed:
        return []
    batch, lengths = _dimensions(graph, list(removed.values()))
    for place in reversed([i for i, value in enumerate(graph.input) if value.name in removed]):
        del graph.input[place]
    appended = _remove_concatenations(model, set(removed))
    gone = {value.name for value in graph.output if value.name.startswith(_PRESENT)} | appended
    for values in (graph.output, graph.value_info):
        for place in reversed([i for i, value in enumerate(values) if value.name in gone]):
            del values[place]
    _disconnect_attention(model, set(removed), gone)
    for name, value in reversed(removed.items()):
        if is_read(model, name):
            _insert_empty(model, value, batch)
    for dim in _named_dimensions(graph):
        dim.dim_param = _without(dim.dim_param, lengths)
    return list(removed)


def _dimensions(
    graph: onnx.GraphProto, cache: list[onnx.ValueInfoProto]
) -> tuple[tuple[str, int] | int, set[str]]:
    """Return the batch size of a cache, fixed or as an axis of an input, and the names of its numbers of tokens.

    Raises
    ------
    ValueError
        When an input has more free dimensions than the batch size and the number of tokens, or no other input has the batch size.
    """
    advice = "export the model without its cache (use_cache=False)"
    lengths = set()
    for value in cache:
        free = [dim for dim in value.type.tensor_type.shape.dim[1:] if not dim.dim_value]
        if len(free) > 1:
            shape = ", ".join(
                str(dim.dim_value or dim.dim_param or "?") for dim in value.type.tensor_type.shape.dim
            )
            raise ValueError(
                f"the key-value cache of the model cannot be removed: {value.name} has the shape [{shape}], expected one free "
                f"dimension after the batch size, the number of tokens; {advice}"
            )
        lengths.add(free[0].dim_param)
    lengths.discard("")
    first = cache[0].type.tensor_type.shape.dim[0]
    if first.dim_value:
        return int(first.dim_value), lengths
    names = {value.name for value in cache}
    others = [value for value in graph.input if value.name not in names]
    for value in others:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            # Inputs of a language model are [batch, tokens], which helps if dimensions have no names.
            if dim.dim_param == first.dim_param if first.dim_param else axis == 0:
                return (value.name, axis), lengths
    raise ValueError(
        f"the key-value cache of the model cannot be removed: no other input has the batch size of {cache[0].name}, "
        f"{first.dim_param or 'which has no name'}; {advice}"
    )


def _remove_concatenations(model: onnx.ModelProto, cache: set[str]) -> set[str]:
    """Replace values that a Concat node appends to the cache by what is appended; return the names of these values."""
    graph = model.graph
    found = [
        i
        for i, node in enumerate(graph.node)
        if node.op_type == "Concat" and len(node.input) == 2 and node.input[0] in cache
    ]
    appended = {graph.node[i].output[0]: graph.node[i].input[1] for i in found}
    for i in reversed(found):
        del graph.node[i]
    for name, value in appended.items():
        _graph.rename_reads(graph, name, value)
    return set(appended)


def _disconnect_attention(model: onnx.ModelProto, cache: set[str], gone: set[str]) -> None:
    """Remove the cache from the inputs of attention operators, and outputs that nothing reads any more."""
    for node in model.graph.node:
        slots = _APPENDING.get((node.domain, node.op_type), ())
        if not any(slot < len(node.input) and node.input[slot] in cache for slot in slots):
            continue
        for slot in slots:
            node.input[slot] = ""
        for place, name in enumerate(node.output):
            if name in gone and not is_read(model, name):
                node.output[place] = ""
        while not node.output[-1]:
            del node.output[-1]


def _insert_empty(model: onnx.ModelProto, value: onnx.ValueInfoProto, batch: tuple[str, int] | int) -> None:
    """Compute keys or values of no tokens at the beginning of the graph, with the name of an input."""
    taken = _graph.names_in_use(model)
    kind = value.type.tensor_type
    # The number of tokens is a free dimension, whose value is 0 here.
    sizes = [dim.dim_value for dim in kind.shape.dim]
    names = [free_name(f"{value.name}_{what}", taken) for what in ("sizes", "shape", "axis", "batch")]
    whole, shape, axis, rows = names
    nodes = []
    if isinstance(batch, int):
        add_initializer(model, whole, np.array(sizes, np.int64))
    else:
        rest = free_name(f"{value.name}_rest", taken)
        add_initializer(model, axis, np.array([batch[1]], np.int64))
        add_initializer(model, rest, np.array(sizes[1:], np.int64))
        nodes = [
            onnx.helper.make_node("Shape", [batch[0]], [shape], shape),
            onnx.helper.make_node("Gather", [shape, axis], [rows], rows, axis=0),
            onnx.helper.make_node("Concat", [rows, rest], [whole], whole, axis=0),
        ]
    zero = onnx.helper.make_tensor("value", kind.elem_type, [1], [0])
    nodes.append(onnx.helper.make_node("ConstantOfShape", [whole], [value.name], value.name, value=zero))
    for node in reversed(nodes):
        model.graph.node.insert(0, node)


def _named_dimensions(graph: onnx.GraphProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    for values in (graph.input, graph.output, graph.value_info):
        for value in values:
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param:
                    yield dim


def _without(dimension: str, lengths: set[str]) -> str:
    """Return the expression of a dimension without the number of earlier tokens."""
    terms = [term.strip() for term in dimension.split("+")]
    kept = [term for term in terms if term not in lengths]
    return " + ".join(kept) if len(kept) < len(terms) else dimension
