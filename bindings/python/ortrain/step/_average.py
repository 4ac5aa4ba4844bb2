"""The moving average of the weights with operators of ONNX: the node WeightAverage of an optimizer model.

The formula is that of ``Optimizer::update_average`` in ``core/src/session/optimizer.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
from onnx import helper

from ortrain.step._nodes import Value

#: The name of the state with the averages, and of the group with the number of averaged steps.
AVERAGE, COUNT = "weight_average", "averaged_steps"


@dataclass(frozen=True)
class Average:
    """How weights are averaged.

    Attributes
    ----------
    decay : float
        The fraction of the average that a step keeps.
    warmup : bool
        Whether the first steps keep less.
    """

    decay: float
    warmup: bool

    def kept(self, count: Value) -> Value:
        """Write the share of the average that a step after `count` others keeps; 0 in the first step."""
        kept = count.number(self.decay)
        if self.warmup:
            kept = kept.call("Min", (count + 1.0) / (count + 10.0))
        return count.equals(0.0).choose(count.number(0.0), kept)


def take_average(optimizer: onnx.ModelProto) -> Average | None:
    """Remove the node WeightAverage from an optimizer model; return its settings, or None if there is no such node."""
    graph = optimizer.graph
    for node in graph.node:
        if node.op_type != "WeightAverage":
            continue
        settings = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
        graph.node.remove(node)
        read = {name for other in graph.node for name in other.input}
        for name in node.input:
            for value in [v for v in graph.input if v.name == name and name not in read]:
                graph.input.remove(value)
        for value in graph.output:
            value.name = node.input[2] if value.name == node.output[0] else value.name
        return Average(float(settings.get("decay", 0.999)), bool(settings.get("warmup", 0)))
    return None
