"""Turns a forward model into an eval model, which updates no statistics and drops nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import onnx

_ONNX = ("", "ai.onnx")

#: For operators of quantization-aware training, the index of the input that replaces the output.
_READ_INSTEAD = {"ObserveRange": 1, "StopGradient": 0}

#: The last part of the names of Add nodes whose second addend is computed from what Dropout drops; see
#: `ortrain.artifacts.graph.dora`.
ADDS_DROPPED = "with_dropped"


def set_evaluation_mode(
    model: onnx.ModelProto, chosen: Callable[[onnx.NodeProto], bool] = lambda node: True
) -> None:
    """Switch nodes that behave differently in training to inference, in place: all of them, or the chosen ones.

    These are batch normalization and dropout, and the operators of quantization-aware training.

    Raises
    ------
    ValueError
        When a value that batch normalization produces only in training is used elsewhere in the model.
    """
    removed = _set_graph(model.graph, chosen)
    kept = [value for value in model.graph.value_info if value.name not in removed]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)


def _set_graph(graph: onnx.GraphProto, chosen: Callable[[onnx.NodeProto], bool]) -> set[str]:
    used = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    removed: set[str] = set()
    drops: set[tuple[str, str]] = set()
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _set_graph(attribute.g, chosen)
        if node.domain == "ortrain" and node.op_type in _READ_INSTEAD and chosen(node):
            source = node.input[_READ_INSTEAD[node.op_type]]
            nodes[-1] = onnx.helper.make_node("Identity", [source], node.output, name=node.name)
            continue
        if (
            node.domain not in _ONNX
            or node.op_type not in ("BatchNormalization", "Dropout")
            or not chosen(node)
        ):
            continue
        if node.op_type == "BatchNormalization":
            replaced, gone = _set_batch_normalization(node, used)
            nodes.extend(replaced)
            removed |= gone
        elif len(node.input) > 2:
            # Without its third input, training_mode, Dropout returns its first input. The third input stays as an empty name,
            # because programs for onnxruntime read the list of inputs.
            node.input[2] = ""
            drops.add((node.input[0], node.output[0]))
    if drops:
        removed |= _remove_dropped(nodes, drops, {value.name for value in graph.output})
    del graph.node[:]
    graph.node.extend(nodes)
    return removed


def _remove_dropped(nodes: list[onnx.NodeProto], drops: set[tuple[str, str]], kept: set[str]) -> set[str]:
    """Remove the nodes that add what a Dropout drops, where it drops nothing; return the values that are gone."""
    zeros = {
        node.output[0]
        for node in nodes
        if node.op_type == "Sub" and "/lora/" in node.name and tuple(node.input) in drops
    }
    if not zeros:
        return set()
    renamed: dict[str, str] = {}
    left: list[onnx.NodeProto] = []
    for node in nodes:  # in the order of execution
        read = not zeros.isdisjoint(node.input)
        if read and node.name.partition("/lora/")[2].startswith(ADDS_DROPPED):
            renamed[node.input[0]] = node.output[0]
            continue
        if read:
            zeros.update(node.output)
        left.append(node)
    readers = Counter(name for node in left for name in node.input)
    gone = set(renamed)
    nodes.clear()
    for node in reversed(left):
        node.output[:] = [renamed.get(name, name) for name in node.output]
        if "/lora/" in node.name and not any(readers[name] or name in kept for name in node.output):
            readers.subtract(node.input)
            gone.update(node.output)
        else:
            nodes.append(node)
    nodes.reverse()
    return gone


def _set_batch_normalization(node: onnx.NodeProto, used: set[str]) -> tuple[list[onnx.NodeProto], set[str]]:
    """Remove all outputs but the first. Where other nodes read updated statistics, they read the input statistics instead."""
    others = list(node.output)[1:]
    stand_ins = []
    for position, name in enumerate(others):
        if not name or name not in used:
            continue
        if position >= 2:
            raise ValueError(
                f"cannot create an eval model: {name!r}, a batch statistic that node {node.name!r} "
                "(BatchNormalization) produces only in training, is used elsewhere in the model"
            )
        source = node.input[3 + position]
        stand_ins.append(onnx.helper.make_node("Identity", [source], [name], name=f"{name}/Identity"))
    for attribute in node.attribute:
        if attribute.name == "training_mode":
            attribute.i = 0
    del node.output[1:]
    return stand_ins, {name for name in others if name and name not in used}
