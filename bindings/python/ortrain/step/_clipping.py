"""Clipping of gradients with operators of ONNX: the nodes ClipGradients of an optimizer model.

The formulas are those of ``core/src/session/gradient_clipping.cpp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from ortrain.step._nodes import Nodes, Value
from ortrain.step._optimizers import clipped


@dataclass
class Clipping:
    """Limits of gradients, except the limit of the norm of all gradients together.

    Attributes
    ----------
    value : float or None
        The largest element, without its sign.
    adaptive : float or None
        The largest norm of a parameter's gradient, as a share of the parameter's norm.
    epsilon : float
        The smallest norm of a parameter that counts for the share.
    group_norm : float or None
        The largest norm of the gradients of a group of parameters.
    """

    value: float | None = None
    adaptive: float | None = None
    epsilon: float = 1e-3
    group_norm: float | None = None

    @property
    def changes_nothing(self) -> bool:
        """Whether the gradients are not clipped."""
        return self.value is None and self.adaptive is None and self.group_norm is None

    def each(self, gradients: Mapping[str, Value], weights: Mapping[str, Value]) -> dict[str, Value]:
        """Write the clipping of each parameter's gradient."""
        return {name: self._one(gradient, weights[name]) for name, gradient in gradients.items()}

    def _one(self, gradient: Value, weight: Value) -> Value:
        if self.value is not None:
            gradient = gradient.call("Clip", gradient.number(-self.value), gradient.number(self.value))
        if self.adaptive is None:
            return gradient
        norm = _norm(gradient)
        most = _norm(weight).call("Max", norm.number(self.epsilon)) * self.adaptive
        # most / norm if the norm is too large, else 1; never 0 / 0.
        return gradient * (most / norm.call("Max", most)).as_type(gradient.type)

    def of_group(self, nodes: Nodes, gradients: dict[str, Value]) -> dict[str, Value]:
        """Write the clipping of gradients by the norm of a group."""
        return gradients if self.group_norm is None else clipped(nodes, gradients, self.group_norm)


def _norm(value: Value) -> Value:
    wide = TensorProto.FLOAT if value.type in (TensorProto.FLOAT16, TensorProto.BFLOAT16) else value.type
    return value.as_type(wide).call("ReduceSumSquare", keepdims=0).call("Sqrt")


def take_clipping(optimizer: onnx.ModelProto) -> Clipping:
    """Remove the nodes ClipGradients from an optimizer model and return their settings."""
    clipping = Clipping()
    graph = optimizer.graph
    for node in list(graph.node):
        if node.op_type != "ClipGradients":
            continue
        settings = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
        limit = float(settings.get("limit", 1.0))
        match kind := settings["type"].decode():
            case "value":
                clipping.value = limit
            case "adaptive":
                clipping.adaptive = limit
                clipping.epsilon = float(settings.get("epsilon", clipping.epsilon))
            case "group_norm":
                clipping.group_norm = limit
            case _:
                raise ValueError(f"node {node.name!r}: clipping of type {kind} has no standard form")
        graph.node.remove(node)
        for later in graph.node:
            later.input[:] = [node.input[0] if name == node.output[0] else name for name in later.input]
    return clipping
