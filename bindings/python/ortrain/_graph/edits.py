"""Edits of a model: inputs and outputs, initializers, names that nodes read."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Container, Iterable

import onnx

from ortrain._graph.queries import (
    element_type,
    find_value_info,
    floating_tensor,
    graphs_in,
    opset_of,
    subgraphs,
    value_exists,
)

#: The opset of ONNX that is added to a model that imports none.
ADDED_OPSET = 17


def add_input_like(model: onnx.ModelProto, like: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    """Add an input with the type and shape of a value, and return it.

    A named dimension that no input has stays unknown: exporters invent names for dimensions that they do not know, and use one
    name for different dimensions.
    """
    known = {dim.dim_param for value in model.graph.input for dim in value.type.tensor_type.shape.dim}
    new: onnx.ValueInfoProto = model.graph.input.add()
    new.CopyFrom(like)
    new.name = name
    for dim in new.type.tensor_type.shape.dim:
        if dim.dim_param not in known:
            dim.ClearField("dim_param")
    return new


def register_outputs(model: onnx.ModelProto, names: Iterable[str]) -> None:
    """Make values the outputs of the graph, in the given order.

    Raises
    ------
    LookupError
        When the model does not have one of the values; the message names it.
    """
    outputs = []
    for name in dict.fromkeys(names):
        info = find_value_info(model, name)
        if info is None:
            if not value_exists(model, name):
                known = ", ".join(value.name for value in model.graph.output) or "none"
                raise LookupError(
                    f"cannot make {name!r} an output: no node produces it; the outputs so far are {known}"
                )
            info = onnx.ValueInfoProto(name=name)
            info.type.tensor_type.elem_type = element_type(model, name)
        outputs.append(info)
    copies = []
    for info in outputs:
        output = onnx.ValueInfoProto()
        output.CopyFrom(info)
        copies.append(output)
    del model.graph.output[:]
    model.graph.output.extend(copies)


def constants_to_initializers(model: onnx.ModelProto, names: Container[str]) -> None:
    """Replace Constant nodes by initializers, which can be parameters.

    Some exporters, PaddlePaddle's among them, store weights in Constant nodes.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, which is changed, subgraphs too.
    names : container of str
        The values to replace. Values that are not floating-point tensors of Constant nodes do not change.
    """
    for graph in (model.graph, *subgraphs(model.graph)):
        kept = []
        for node in graph.node:
            tensor = floating_tensor(node) if node.output and node.output[0] in names else None
            if tensor is None:
                kept.append(node)
            else:
                initializer = graph.initializer.add()
                initializer.CopyFrom(tensor)
                initializer.name = node.output[0]
        if len(kept) < len(graph.node):
            copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
            del graph.node[:]
            graph.node.extend(copies)


def lift_initializers(model: onnx.ModelProto, names: Iterable[str]) -> dict[str, list[str]]:
    """Move initializers of subgraphs to the main graph, where they can be parameters.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, which is changed.
    names : iterable of str
        Names of initializers. Names of initializers in the main graph, and names that no graph has, are ignored.

    Returns
    -------
    dict
        For each name that was moved, its names in the main graph. The name does not change unless another value already has it.
        If several subgraphs have initializers of one name, each gets a name.
    """
    own = {tensor.name for tensor in model.graph.initializer}
    inner = list(subgraphs(model.graph))
    if not inner:
        return {}
    defined = Counter(name for graph in (model.graph, *inner) for name in _defined_names(graph))
    lifted: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        holders = [
            graph
            for graph in inner
            if any(tensor.name == name for tensor in graph.initializer)
            # a caller of the graph may pass its value
            and not any(value.name == name for value in graph.input)
        ]
        if name in own or not holders:
            continue
        lifted[name] = []
        is_free = defined[name] == len(holders)
        for graph in holders:
            numbered = (f"{name}_{number}" for number in itertools.count(1))
            target = name if is_free else next(other for other in numbered if other not in defined)
            is_free = False
            defined[target] += 1
            _lift(model, graph, name, target)
            lifted[name].append(target)
    return lifted


def _defined_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the values that a graph defines."""
    names = {value.name for value in graph.input}
    names.update(tensor.name for tensor in graph.initializer)
    names.update(output for node in graph.node for output in node.output if output)
    return names


def _lift(model: onnx.ModelProto, graph: onnx.GraphProto, name: str, target: str) -> None:
    """Move an initializer of a subgraph to the main graph under another name."""
    place = next(i for i, tensor in enumerate(graph.initializer) if tensor.name == name)
    moved = model.graph.initializer.add()
    moved.CopyFrom(graph.initializer[place])
    moved.name = target
    del graph.initializer[place]
    for output in graph.output:  # a node of a graph must compute each of its outputs
        if output.name == name:
            output.name = f"{target}_given"
            graph.node.append(onnx.helper.make_node("Identity", [name], [output.name], name=output.name))
    for i in reversed([i for i, value in enumerate(graph.value_info) if value.name == name]):
        del graph.value_info[i]
    rename_reads(graph, name, target)


def rename_reads(graph: onnx.GraphProto, name: str, target: str) -> None:
    """Make the nodes that read a value, in subgraphs too, read another one."""
    for node in graph.node:
        node.input[:] = [target if value == name else value for value in node.input]
        for inner in graphs_in(node):
            if name not in _defined_names(inner):
                rename_reads(inner, name, target)


def import_domain(model: onnx.ModelProto, domain: str, version: int) -> None:
    """Add an opset import if the model does not have one for the domain."""
    if opset_of(model, domain) is None:
        model.opset_import.append(onnx.helper.make_opsetid(domain, version))
