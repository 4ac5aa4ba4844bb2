"""Softmax that an exporter wrote as several nodes, as tf2onnx does for ``jax.nn.softmax``.

    e = Exp(x - max(x))
    y = e / sum(e)

The maximum and the sum are of the last dimension. They may pass through nodes that only change their shape, and the maximum
through a Max with a constant.
"""

from __future__ import annotations

import onnx

from ortrain import _graph

#: Operators that keep the elements of a value, or repeat them.
_RESHAPING = frozenset({"Cast", "Expand", "Identity", "Reshape", "Squeeze", "Unsqueeze"})

Producers = dict[str, onnx.NodeProto]


def join_softmax(model: onnx.ModelProto) -> None:
    """Replace the nodes of a softmax that computes an output of the model by Softmax, in place."""
    graph = model.graph
    producers = {name: node for node in graph.node for name in node.output}
    found = []
    for output in graph.output:
        name = output.name
        while name in producers and producers[name].op_type in _RESHAPING:
            name = producers[name].input[0]
        scores = scores_of_softmax(model, producers, name)
        if scores is not None:
            found.append((producers[name], scores))
    for division, scores in found:
        unread = list(division.input)
        division.op_type = "Softmax"
        del division.input[:]
        division.input.append(scores)
        division.attribute.append(onnx.helper.make_attribute("axis", -1))
        _remove_unread_nodes(graph, unread)


def scores_of_softmax(model: onnx.ModelProto, producers: Producers, name: str) -> str | None:
    """Return the scores of a softmax of several nodes that computes a value; None if the value has another origin."""
    division = producers.get(name)
    if division is None or division.op_type != "Div":
        return None
    exponential = producers.get(division.input[0])
    total = _before_reshaping(producers, division.input[1])
    if exponential is None or exponential.op_type != "Exp" or total is None or total.op_type != "ReduceSum":
        return None
    if total.input[0] != exponential.output[0] or not _is_of_last_dimension(model, producers, total):
        return None
    difference = producers.get(exponential.input[0])
    if difference is None or difference.op_type != "Sub":
        return str(exponential.input[0])
    largest = _before_reshaping(producers, difference.input[1])
    if (
        largest is None
        or largest.op_type != "ReduceMax"
        or largest.input[0] != difference.input[0]
        or not _is_of_last_dimension(model, producers, largest)
    ):
        return str(exponential.input[0])
    return str(difference.input[0])


def _before_reshaping(producers: Producers, name: str) -> onnx.NodeProto | None:
    """Return the node that computes a value before nodes that change its shape, and a Max with a constant."""
    node = producers.get(name)
    while node is not None and (node.op_type in _RESHAPING or node.op_type == "Max"):
        computed = [producers[value] for value in node.input if value in producers]
        if node.op_type == "Max":
            computed = [other for other in computed if other.op_type != "Constant"]
            if len(computed) != 1:
                return None
        node = computed[0] if computed else None
    return node


def _is_of_last_dimension(model: onnx.ModelProto, producers: Producers, node: onnx.NodeProto) -> bool:
    """Whether a reduction is along the last dimension alone."""
    axes = next((list(attribute.ints) for attribute in node.attribute if attribute.name == "axes"), None)
    if axes is None and len(node.input) > 1:
        tensor = next((tensor for tensor in model.graph.initializer if tensor.name == node.input[1]), None)
        constant = producers.get(node.input[1])
        if constant is not None and constant.op_type == "Constant":
            tensor = next((value.t for value in constant.attribute if value.name == "value"), None)
        axes = None if tensor is None else onnx.numpy_helper.to_array(tensor).ravel().tolist()
    if axes is None or len(axes) != 1:
        return False
    info = _graph.find_value_info(model, node.input[0])
    shaped = info is not None and info.type.tensor_type.HasField("shape")
    rank = len(info.type.tensor_type.shape.dim) if info is not None and shaped else None
    return bool(axes[0] == -1 or axes[0] + 1 == rank)


def _remove_unread_nodes(graph: onnx.GraphProto, names: list[str]) -> None:
    """Remove the nodes that compute values that nothing reads."""
    while names:
        name = names.pop()
        read = any(name in node.input for node in graph.node) or any(o.name == name for o in graph.output)
        node = next((node for node in graph.node if list(node.output) == [name]), None)
        if node is not None and not read:
            names.extend(node.input)
            graph.node.remove(node)
