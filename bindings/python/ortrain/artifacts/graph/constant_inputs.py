"""Constants of the network's code that some exporters declare as inputs of the model."""

from __future__ import annotations

import logging

import onnx

from ortrain import _graph
from ortrain.artifacts.choice.export_record import is_named_as_constant

_log = logging.getLogger("ortrain.artifacts")


def without_constant_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without inputs that are constants of the network's code.

    tf2onnx declares constants that a function of TensorFlow captures as inputs, such as the mean of a Normalization
    layer of Keras. Inputs that folding made superfluous are removed, because a user would not know what to feed. If a
    node reads such an input, its value is lost, and a warning says so.
    """
    read = {name for node in _graph.walk(model.graph) for name in node.input}
    read |= {value.name for graph in (model.graph, *_graph.subgraphs(model.graph)) for value in graph.output}
    valued = {tensor.name for tensor in model.graph.initializer}
    constants = [
        value.name
        for value in model.graph.input
        if value.name not in valued and is_named_as_constant(value.name)
    ]
    needless = [name for name in constants if name not in read]
    lost = [name for name in constants if name in read]
    if lost and model.producer_name == "tf2onnx":
        _log.warning(
            "every step has to feed %s: by the name this is a constant of the network, but the export has it as an input "
            "without a value, which is a fault of the export; ortrain.keras.export writes such constants",
            ", ".join(lost),
        )
    if not needless:
        return model
    _log.warning(
        "left out inputs that no node reads, which are constants by their names: %s", ", ".join(needless)
    )
    changed: onnx.ModelProto = onnx.ModelProto()
    changed.CopyFrom(model)
    kept = [value for value in model.graph.input if value.name not in needless]
    del changed.graph.input[:]
    changed.graph.input.extend(kept)
    return changed
