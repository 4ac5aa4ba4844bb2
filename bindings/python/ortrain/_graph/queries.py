"""Questions about a model: its values, nodes, nested graphs and operator sets."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx

#: Types that a parameter can have.
FLOATING = frozenset(
    {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
)


def names_in_use(model: onnx.ModelProto) -> set[str]:
    """Return the names of all values and nodes of the main graph."""
    graph = model.graph
    names = {value.name for values in (graph.input, graph.output, graph.value_info) for value in values}
    names.update(tensor.name for tensor in graph.initializer)
    for node in graph.node:
        names.add(node.name)
        names.update(node.input)
        names.update(node.output)
    return names


def value_exists(model: onnx.ModelProto, name: str) -> bool:
    """Return whether a value with this name is an input, an initializer, or written or read by a node."""
    graph = model.graph
    return (
        any(value.name == name for value in graph.input)
        or any(tensor.name == name for tensor in graph.initializer)
        or any(name in node.input or name in node.output for node in graph.node)
    )


def find_value_info(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto | None:
    """Return what the model declares about a value: an input, an output, an initializer or an intermediate value."""
    graph = model.graph
    for values in (graph.input, graph.output, graph.value_info):
        for value in values:
            if value.name == name:
                found: onnx.ValueInfoProto = value
                return found
    for tensor in graph.initializer:
        if tensor.name == name:
            return onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
    return None


def element_type(model: onnx.ModelProto, name: str) -> int:
    """Return the element type of a value.

    An undeclared value has the type of the first input of its node; for Where, the type of the chosen values. If no type is
    known, the result is float: callers create constants of this type, and almost every model is float.
    """
    producers = {output: node for node in model.graph.node for output in node.output}
    seen: set[str] = set()
    while name and name not in seen:
        seen.add(name)
        info = find_value_info(model, name)
        if info is not None and info.type.tensor_type.elem_type:
            return int(info.type.tensor_type.elem_type)
        node = producers.get(name)
        if node is None or not node.input:
            break
        if node.op_type == "Cast":
            return next(int(a.i) for a in node.attribute if a.name == "to")
        name = node.input[1 if node.op_type == "Where" else 0]
    return int(onnx.TensorProto.FLOAT)


def walk(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield every node of a graph and of the graphs inside its nodes."""
    for node in graph.node:
        yield node
        for inner in graphs_in(node):
            yield from walk(inner)


def graphs_in(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def subgraphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs inside the nodes of a graph, however nested, the outer before the inner."""
    for node in graph.node:
        for inner in graphs_in(node):
            yield inner
            yield from subgraphs(inner)


def floating_constants(graph: onnx.GraphProto) -> list[str]:
    """Return the values of Constant nodes of a graph that are floating-point tensors."""
    return [node.output[0] for node in graph.node if floating_tensor(node) is not None]


def floating_tensor(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """Return the floating-point tensor of a Constant node; None for other nodes."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    for attribute in node.attribute:
        if attribute.name == "value" and attribute.t.data_type in FLOATING:
            given: onnx.TensorProto = attribute.t
            return given
        if attribute.name in ("value_float", "value_floats"):
            value = attribute.f if attribute.name == "value_float" else list(attribute.floats)
            tensor: onnx.TensorProto = onnx.numpy_helper.from_array(np.array(value, np.float32))
            return tensor
    return None


def unknown_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes, in all graphs, that are in the domain of ONNX but whose operator no version of ONNX has."""
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""}
    return [
        node for node in walk(model.graph) if node.domain in ("", "ai.onnx") and node.op_type not in known
    ]


def opset_of(model: onnx.ModelProto, domain: str = "") -> int | None:
    """Return the version of a domain that the model imports, or None."""
    for opset in model.opset_import:
        if opset.domain == domain or (domain == "" and opset.domain == "ai.onnx"):
            return int(opset.version)
    return None


def running_statistics(model: onnx.ModelProto, updated_only: bool = False) -> list[str]:
    """Return the names of the running means and variances that batch normalization uses, or updates, and of observed ranges."""
    names: list[str] = []
    for node in walk(model.graph):
        if node.op_type == "ObserveRange" and node.domain == "ortrain":
            names.append(node.input[1])
        if node.op_type != "BatchNormalization" or node.domain not in ("", "ai.onnx"):
            continue
        # Before opset 14, which added an attribute for it, more than one output meant training.
        if (opset_of(model) or 14) >= 14:
            updates = any(a.name == "training_mode" and a.i == 1 for a in node.attribute)
        else:
            updates = len(node.output) > 1
        if updates or not updated_only:
            names.extend(name for name in list(node.input)[3:5] if name)
    return list(dict.fromkeys(names))
