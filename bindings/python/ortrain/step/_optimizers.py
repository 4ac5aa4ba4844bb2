"""Optimizers with operators of ONNX: reading the groups of parameters from an optimizer model, and clipping by norm."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import onnx
from onnx import TensorProto

from ortrain import _ortrain
from ortrain.errors import OrtrainError
from ortrain.step._formula_group import FormulaGroup
from ortrain.step._nodes import Nodes, Value
from ortrain.step._tensor_rules import TENSOR_RULES, TensorGroup

Group = FormulaGroup | TensorGroup

#: Added to the norm before a division by the norm, as in PyTorch's clip_grad_norm_.
_TINY = 1e-6


def read_optimizer(
    model: onnx.ModelProto, trained: Iterable[str]
) -> tuple[list[Group], list[str], float | None]:
    """Return the groups of an optimizer model, the names of the states, and the limit of the norm of the gradients.

    Raises
    ------
    ValueError
        When the model has a node of an operator that is not an optimizer, or the optimizer has no standard form.
    """
    try:
        described = json.loads(_ortrain.get_optimizer_formulas(model.SerializeToString()))
    except OrtrainError as error:
        raise ValueError(str(error).removeprefix("GetOptimizerFormulas: ")) from error
    kind = described["optimizer"]
    if kind not in TENSOR_RULES and not all(group["results"] for group in described["groups"]):
        raise ValueError(f"the optimizer {kind} has no standard form: its step is not a formula on elements")
    make = TENSOR_RULES.get(kind, FormulaGroup)
    groups: list[Group] = [make(group) for group in described["groups"]]
    named = {name for group in groups for name in group.parameters}
    for group in groups:
        if not group.parameters:
            group.parameters = [name for name in trained if name not in named]
    return groups, described["states"], described["max_norm"]


def clipped(
    nodes: Nodes, gradients: dict[str, Value], limit: float, factors: Mapping[str, float] | None = None
) -> dict[str, Value]:
    """Write the scaling of all gradients to a norm of at most `limit`, times a factor for each; return them."""
    squares = [
        nodes.value(nodes.add("ReduceSumSquare", [g.as_type(TensorProto.FLOAT)], keepdims=0))
        for g in gradients.values()
    ]
    total = squares[0] if len(squares) == 1 else nodes.value(nodes.add("Sum", squares))
    norm = total.call("Sqrt")
    scale = norm.number(1.0).call("Min", norm.number(limit) / (norm + _TINY))
    return multiplied(gradients, scale, factors or {})


def multiplied(
    gradients: Mapping[str, Value], scale: Value, factors: Mapping[str, float]
) -> dict[str, Value]:
    """Write the products of all gradients with a number and a factor for each."""
    scales = {factor: scale if factor == 1 else scale * factor for factor in {1.0, *factors.values()}}
    return {name: g * scales[factors.get(name, 1.0)].as_type(g.type) for name, g in gradients.items()}
