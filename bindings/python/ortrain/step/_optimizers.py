"""Optimizers with operators of ONNX: the nodes of an optimizer model as formulas on each parameter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from ortrain.onnxblock.optim.declarations import declared
from ortrain.step._nodes import Nodes, Value
from ortrain.step._rules import RULES, SCALARS, Step, Update

#: Added to a norm that is divided by, as in PyTorch's clip_grad_norm_.
_TINY = 1e-6


#: The optimizers of com.microsoft: their names here, and the settings that their nodes may leave out.
_OF_ONNXRUNTIME: dict[str, tuple[str, dict[str, float]]] = {
    "AdamWOptimizer": (
        "adamw",
        {
            "alpha": 0.9,
            "beta": 0.999,
            "epsilon": 1e-8,
            "weight_decay": 1e-2,
            "correct_bias": 1,
            "adam_mode": 0,
        },
    ),
    "SGDOptimizerV2": ("sgd", {"momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": 0}),
}


class Group:
    """What an optimizer model does to some of the parameters.

    Parameters
    ----------
    node : onnx.NodeProto
        The node of the optimizer.

    Raises
    ------
    ValueError
        When the optimizer has no standard form.
    """

    def __init__(self, node: onnx.NodeProto) -> None:
        given = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
        if node.op_type in _OF_ONNXRUNTIME:
            self.type, settings = _OF_ONNXRUNTIME[node.op_type]
        else:
            self.type, settings = given.get("type", node.op_type.encode()).decode(), {}
        if self.type not in RULES:
            raise ValueError(
                f"the optimizer {self.type} has no standard form; those that have one are {', '.join(sorted(RULES))}"
            )
        self.name = given.get("group", b"group0").decode()
        self.parameters = [name.decode() for name in given.get("parameters", [])]
        self._rate_factor = float(given.get("learning_rate_factor", 1.0))
        self.settings = settings | {
            name: float(value) for name, value in given.items() if isinstance(value, int | float)
        }
        self.scalars = SCALARS.get(self.type, {})

    def prepare(self, rate: Value, count: Value, scalars: dict[str, Value]) -> Update:
        """Write what is the same for all parameters; return the function that writes the update of one.

        Parameters
        ----------
        rate : Value
            The learning rate, a float.
        count : Value
            The number of this step, from 1 on, as a float.
        scalars : dict of str to Value
            What the group keeps from step to step. The values after the step replace them.
        """
        own_rate = rate if self._rate_factor == 1 else rate * self._rate_factor
        return RULES[self.type](Step(self.settings, own_rate, count, scalars))


def states_of(groups: Sequence[Group]) -> list[str]:
    """Return the names of the states that each parameter has: those that some group needs."""
    declaration = declared()[groups[0].type]
    return [
        state.name
        for state in declaration.states
        if state.when is None or any(group.settings[state.when] for group in groups)
    ]


def read_optimizer(model: onnx.ModelProto, trained: Iterable[str]) -> tuple[list[Group], float | None]:
    """Return the groups of an optimizer model, and the limit of the norm of the gradients.

    Raises
    ------
    ValueError
        When an optimizer has no standard form.
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
