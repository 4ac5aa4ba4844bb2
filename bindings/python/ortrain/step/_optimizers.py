"""Optimizers with operators of ONNX: the nodes of an optimizer model as formulas on each parameter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from ortrain.step._nodes import Nodes, Value

#: Added to a norm that is divided by, as in PyTorch's clip_grad_norm_.
_TINY = 1e-6


class Group:
    """What an optimizer model does to some of the parameters.

    Parameters
    ----------
    node : onnx.NodeProto
        An AdamWOptimizer or an SGDOptimizerV2 of com.microsoft.

    Raises
    ------
    ValueError
        When it is another optimizer.
    """

    def __init__(self, node: onnx.NodeProto) -> None:
        known = {"AdamWOptimizer": 2, "SGDOptimizerV2": 0}
        if node.op_type not in known:
            found = next((a.s.decode() for a in node.attribute if a.name == "type"), node.op_type)
            raise ValueError(
                f"the optimizer {found} has no standard form; expected adamw or sgd without momentum"
            )
        settings = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
        self.moments = known[node.op_type]
        self.name = settings.get("group", b"group0").decode()
        self.parameters = [name.decode() for name in settings.get("parameters", [])]
        self._rate_factor = float(settings.get("learning_rate_factor", 1.0))
        self._alpha = float(settings.get("alpha", 0.9))
        self._beta = float(settings.get("beta", 0.999))
        self._epsilon = float(settings.get("epsilon", 1e-8))
        self._weight_decay = float(settings.get("weight_decay", 1e-2))
        self._corrects_bias = bool(settings.get("correct_bias", 1))
        self._decays_last = settings.get("adam_mode", 0) == 1

    def prepare(self, rate: Value, count: Value) -> None:
        """Write what is the same for all parameters.

        Parameters
        ----------
        rate : Value
            The learning rate, a float.
        count : Value
            The number of this step, from 1 on, as a float.
        """
        self._rate = rate if self._rate_factor == 1 else rate * self._rate_factor
        if self.moments == 0:
            return
        self._step_size, self._root_scale = self._rate, None
        if self._corrects_bias:
            root = _one_minus_power(self._beta, count).call("Sqrt")
            self._step_size = self._rate / _one_minus_power(self._alpha, count)
            if self._decays_last:
                self._step_size = self._step_size * root
            else:
                self._root_scale = root.call("Reciprocal")
        self._decay = None if self._weight_decay == 0 else 1.0 - self._rate * self._weight_decay

    def update(self, weight: Value, gradient: Value, moments: Sequence[Value]) -> tuple[Value, list[Value]]:
        """Write the step of one parameter; return the new value and the new moments.

        AdamW with ``adam_mode`` 1 is that of Hugging Face: the weights decay after the update, and epsilon is added to
        the root before its bias is corrected. With 0 it is that of PyTorch.
        """
        if self.moments == 0:
            return weight - self._rate * gradient, []
        first = self._alpha * moments[0] + (1 - self._alpha) * gradient
        second = self._beta * moments[1] + (1 - self._beta) * (gradient * gradient)
        root = second.call("Sqrt")
        if self._root_scale is not None:
            root = root * self._root_scale
        change = self._step_size * (first / (root + self._epsilon))
        if self._decay is None:
            return weight - change, [first, second]
        if self._decays_last:
            return (weight - change) * self._decay, [first, second]
        return weight * self._decay - change, [first, second]


def _one_minus_power(base: float, count: Value) -> Value:
    """1 - base^count without cancellation: with a = count ln(base) / 2, it is -2 exp(a) sinh(a)."""
    if base == 0:
        return count.number(1.0)
    half = count * (0.5 * math.log(base))
    return -2.0 * (half.call("Exp") * half.call("Sinh"))


def read_optimizer(model: onnx.ModelProto, trained: Iterable[str]) -> tuple[list[Group], float | None]:
    """Return the groups of an optimizer model, and the limit of the norm of the gradients.

    Raises
    ------
    ValueError
        When it has another optimizer than AdamW or SGD.
    """
    limit: float | None = None
    groups = []
    for node in model.graph.node:
        if node.op_type == "InplaceClipGradNorm":
            settings: dict[str, Any] = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            limit = float(settings.get("max_norm", 1.0))
        else:
            groups.append(Group(node))
    named = {name for group in groups for name in group.parameters}
    for group in groups:
        if not group.parameters:
            group.parameters = [name for name in trained if name not in named]
    return groups, limit


def clipped(nodes: Nodes, gradients: dict[str, Value], limit: float) -> tuple[dict[str, Value], Value]:
    """Write the scaling of all gradients to a norm of at most `limit`; return them and the norm before."""
    squares = [
        nodes.value(nodes.add("ReduceSumSquare", [g.as_type(TensorProto.FLOAT)], keepdims=0))
        for g in gradients.values()
    ]
    total = squares[0] if len(squares) == 1 else nodes.value(nodes.add("Sum", squares))
    norm = total.call("Sqrt")
    factor = nodes.value(nodes.add("Min", [norm.number(1.0), norm.number(limit) / (norm + _TINY)]))
    return {name: g * factor.as_type(g.type) for name, g in gradients.items()}, norm
