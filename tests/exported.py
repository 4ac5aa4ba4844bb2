"""Checks that every exported model must pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and those inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)


def unused_initializers(model: onnx.ModelProto) -> set[str]:
    """Return the initializers that nothing reads."""
    every = list(graphs(model.graph))
    read = {name for graph in every for node in graph.node for name in node.input}
    read |= {output.name for graph in every for output in graph.output}
    return {tensor.name for graph in every for tensor in graph.initializer} - read


#: Operators that onnxruntime has in the domain of ONNX, and ONNX does not have.
ONNXRUNTIME_ONLY = {"SimplifiedLayerNormalization"}


def check_valid(model: onnx.ModelProto) -> None:
    """Check a model with ONNX's checker and shape inference, as if operators of onnxruntime had its domain."""
    checked = onnx.ModelProto()
    checked.CopyFrom(model)
    for node in checked.graph.node:
        if node.op_type in ONNXRUNTIME_ONLY:
            node.domain = "com.microsoft"
    onnx.checker.check_model(checked, full_check=True)


def check_exported(path: str | Path) -> onnx.ModelProto:
    """Check a file with ONNX's checker and shape inference, and that it has no unused initializer."""
    model = onnx.load(path)
    if any(node.op_type in ONNXRUNTIME_ONLY for node in model.graph.node):
        check_valid(model)
    else:
        onnx.checker.check_model(str(path), full_check=True)
    assert not unused_initializers(model)
    made = {name for node in model.graph.node for name in node.output}
    assert {info.name for info in model.graph.value_info} <= made
    return model
