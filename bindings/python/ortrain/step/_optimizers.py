"""Optimizers with operators of ONNX: the formulas of the library, written as nodes for each parameter."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from ortrain import _ortrain
from ortrain.errors import OrtrainError
from ortrain.step import _formula
from ortrain.step._formula import Formula, Operand
from ortrain.step._nodes import Nodes, Value

#: Added to a norm that is divided by, as in PyTorch's clip_grad_norm_.
_TINY = 1e-6
#: What a parameter's update gets, and changes: weight "w", gradient "g", and the states by their names. The update also gets the
#: factor that the gradient was multiplied by.
Parameter = dict[str, Value]
Update = Callable[[Parameter, float], None]


class Group:
    """What an optimizer model does to some of the parameters.

    Parameters
    ----------
    described : mapping
        The group as :func:`ortrain._ortrain.get_optimizer_formulas` describes it.

    Attributes
    ----------
    name : str
        Its name.
    parameters : list of str
        Their names.
    scalars : dict of str to float
        What the group keeps from step to step, and the first values.
    factor : float
        The factor of the gradients with which the update is shortest. The update can also be written for the factor 1.
    """

    def __init__(self, described: Mapping[str, Any]) -> None:
        self.name: str = described["name"]
        self.parameters: list[str] = list(described["parameters"])
        self.scalars: dict[str, float] = dict(described["scalars"])
        self._formula = _formula.read(described)
        self.factor = self._formula.best_factor()

    def prepare(self, rate: Value, count: Value, scalars: dict[str, Value]) -> Update:
        """Return the function that writes the update of one parameter; what all share is written once.

        Parameters
        ----------
        rate : Value
            The learning rate, a float.
        count : Value
            The number of this step, from 1 on, as a float.
        scalars : dict of str to Value
            What the group keeps from step to step. The values after the step replace them.
        """
        graph = rate._nodes
        inputs = {"rate": rate, "step": count, **scalars}
        shared: dict[int, Value] = {}
        plain = self._formula.for_multiple(1.0)
        formulas = {1.0: plain, self.factor: self._formula.for_multiple(self.factor, plain)}
        for name, operand in plain.scalars.items():
            scalars[name] = _value(operand, plain, graph, inputs, shared, {})

        def update(parameter: Parameter, factor: float) -> None:
            formula = formulas[factor]
            before, own = inputs | parameter, dict[int, Value]()
            for name, operand in formula.results.items():
                parameter[name] = _value(operand, formula, graph, before, shared, own)

        return update


def _value(
    operand: Operand,
    formula: Formula,
    graph: Nodes,
    inputs: Mapping[str, Value],
    shared: dict[int, Value],
    own: dict[int, Value],
) -> Value:
    """Write a node of a formula after those that it reads, unless it is written already; return its result."""
    if isinstance(operand, list):
        return _number(graph, operand[0], TensorProto.FLOAT)
    known = shared if operand in formula.shared else own
    if operand not in known:
        node = formula.nodes[operand]
        if "input" in node:
            known[operand] = inputs[node["input"]]
        else:
            read = [
                x[0] if isinstance(x, list) else _value(x, formula, graph, inputs, shared, own)
                for x in node["inputs"]
            ]
            known[operand] = _written(graph, node["op"], read)
    return known[operand]


def _number(graph: Nodes, number: float, type: int) -> Value:
    return graph.value(graph.constant(np.array(number, helper.tensor_dtype_to_np_dtype(type))), type)


def _written(graph: Nodes, op_type: str, operands: list[Value | float]) -> Value:
    """Write an operator of ONNX. Numbers and numbers of a step take the type of the parameter, if there is one."""
    types = {x.type for x in operands if isinstance(x, Value)} - {TensorProto.BOOL}
    type = TensorProto.DOUBLE if TensorProto.DOUBLE in types else TensorProto.FLOAT
    read = [
        _number(graph, x, type)
        if not isinstance(x, Value)
        else x
        if x.type == TensorProto.BOOL
        else x.as_type(type)
        for x in operands
    ]
    attributes: dict[str, Any] = {"keepdims": 0} if op_type.startswith("Reduce") else {}
    result = graph.add(op_type, read, **attributes)
    return graph.value(result, TensorProto.BOOL if op_type in ("Equal", "Greater") else type)


def read_optimizer(
    model: onnx.ModelProto, trained: Iterable[str]
) -> tuple[list[Group], list[str], float | None]:
    """Return the groups of an optimizer model, the names of the states, and the limit of the norm of the gradients.

    Raises
    ------
    ValueError
        When an optimizer has no standard form.
    """
    try:
        described = json.loads(_ortrain.get_optimizer_formulas(model.SerializeToString()))
    except OrtrainError as error:
        raise ValueError(str(error).removeprefix("GetOptimizerFormulas: ")) from error
    groups = [Group(group) for group in described["groups"]]
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
