"""Losses of scores that would be computed from probabilities."""

from __future__ import annotations

import onnx

from ortrain.artifacts.graph.joined_softmax import scores_of_softmax

_VALUES_STAY = ("Identity", "Cast", "Reshape", "Flatten", "Squeeze")


def scores_before(model: onnx.ModelProto, name: str, activation: str) -> str | None:
    """Return the scores that a value of a model is computed from by an activation; None if it is not.

    Parameters
    ----------
    model : onnx.ModelProto
        The model.
    name : str
        The value.
    activation : str
        ``"Softmax"`` or ``"Sigmoid"``.
    """
    producers = {value: node for node in model.graph.node for value in node.output}
    while name in producers and producers[name].op_type in _VALUES_STAY:
        name = producers[name].input[0]
    if name in producers and producers[name].op_type == activation:
        return str(producers[name].input[0])
    return scores_of_softmax(model, producers, name) if activation == "Softmax" else None
