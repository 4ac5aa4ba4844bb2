"""Optimizers whose step is a formula of the library, written as nodes for each parameter."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from ortrain import _ortrain
from ortrain.step import _formula
from ortrain.step._formula import AFFINE, Formula, Operand
from ortrain.step._nodes import Nodes, Value

#: The function that writes a parameter's update. It gets, and changes, a mapping with the weight "w", the gradient "g", and the
#: states by their names. It also gets the factor by which the gradient was multiplied, and the shape.
Parameter = dict[str, Value]
Shape = tuple[int, ...]
Update = Callable[[Parameter, float, Shape], None]
#: The number of elements above which a pass takes longer than starting a few more nodes.
_LARGE = 16384
#: The type of a state, as ONNX numbers it, and its shape.
StateForm = tuple[int, Shape]


class FormulaGroup:
    """The step of an optimizer model for a group of parameters.

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
        The numbers that the group keeps from step to step, with their first values.
    factor : float
        The factor of the gradients with which the update is shortest. The update can also be written for the factor 1.
    """

    def __init__(self, described: Mapping[str, Any]) -> None:
        self.name: str = described["name"]
        self.parameters: list[str] = list(described["parameters"])
        self.scalars: dict[str, float] = dict(described["scalars"])
        self._formula = _formula.read(described)
        self.factor = self._formula.best_factor()

    def form(self, state: str, type: int, shape: Shape) -> StateForm | None:
        """Return the type and the shape of a state of a parameter, None if the parameter does not need it.

        Parameters
        ----------
        state : str
            The name of the state.
        type : int
            The type in which the parameter is updated.
        shape : tuple of int
            The shape of the parameter.
        """
        return type, shape

    def prepare(self, rate: Value, count: Value, scalars: dict[str, Value]) -> Update:
        """Return the function that writes the update of one parameter; nodes that all parameters share are written once.

        Parameters
        ----------
        rate : Value
            The learning rate, a float.
        count : Value
            The number of this step, from 1 on, as a float.
        scalars : dict of str to Value
            The numbers that the group keeps from step to step. Their values after the step replace them.
        """
        inputs = {"rate": rate, "step": count, **scalars}
        writer = _Writer(rate._nodes, inputs)
        plain = self._formula.for_multiple(1.0)
        formulas = {1.0: plain, self.factor: self._formula.for_multiple(self.factor, plain)}
        shorter = {factor: formula.with_affine() for factor, formula in formulas.items()}
        for name, operand in plain.scalars.items():
            scalars[name] = writer.value(operand, plain, (), {}, {})

        def update(parameter: Parameter, factor: float, shape: Shape) -> None:
            is_large = math.prod(shape) >= _LARGE
            formula = (shorter if is_large else formulas)[factor]
            before, own = dict(parameter), dict[int, Value]()
            for name, operand in formula.results.items():
                parameter[name] = writer.value(operand, formula, shape, before, own)

        return update


class _Writer:
    """Writes the nodes of formulas; nodes that do not depend on a parameter are written once."""

    def __init__(self, graph: Nodes, inputs: Mapping[str, Value]) -> None:
        self._graph, self._inputs = graph, dict(inputs)
        self._shared: dict[int, Value] = {}

    def value(
        self,
        operand: Operand,
        formula: Formula,
        shape: Shape,
        parameter: Mapping[str, Value],
        own: dict[int, Value],
    ) -> Value:
        """Write a node, after the nodes that it reads, unless it is written already; return its result."""
        if isinstance(operand, list):
            return _number(self._graph, operand[0], TensorProto.FLOAT)
        known = self._shared if operand in formula.shared else own
        if operand not in known:
            node = formula.nodes[operand]
            if "input" in node:
                known[operand] = parameter.get(node["input"]) or self._inputs[node["input"]]
            else:
                read = [
                    x[0] if isinstance(x, list) else self.value(x, formula, shape, parameter, own)
                    for x in node["inputs"]
                ]
                known[operand] = _written(self._graph, node["op"], read, shape)
        return known[operand]


def _number(graph: Nodes, number: float, type: int) -> Value:
    return graph.value(graph.constant(np.array(number, helper.tensor_dtype_to_np_dtype(type))), type)


def _written(graph: Nodes, op_type: str, operands: list[Value | float], shape: Shape) -> Value:
    """Write an operator. Numbers and numbers of a step take the type of the parameter, if there is one."""
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
    if op_type == AFFINE:
        value, scale, offset = read
        return _affine(value, scale, offset, shape)
    attributes: dict[str, Any] = {"keepdims": 0} if op_type.startswith("Reduce") else {}
    result = graph.add(op_type, read, **attributes)
    return graph.value(result, TensorProto.BOOL if op_type in ("Equal", "Greater") else type)


def _affine(value: Value, scale: Value, offset: Value, shape: Shape) -> Value:
    """Write a value times a number plus a number as one node: batch normalization of one channel, of mean 0 and variance 1."""
    channel = value.reshaped([1, 1, -1])
    numbers = (scale.reshaped([1]), offset.reshaped([1]), channel.constant([0.0]), channel.constant([1.0]))
    return channel.call("BatchNormalization", *numbers, epsilon=0.0).reshaped(shape)


def adamw_group(settings: Mapping[str, Any]) -> FormulaGroup:
    """Return AdamW in the form of PyTorch, for the parameters to which another optimizer does the same.

    Parameters
    ----------
    settings : mapping of str to float
        The attributes of the operator AdamWOptimizer of com.microsoft.
    """
    names = ["rate", "step", "weights", "gradients", "first", "second"]
    node = helper.make_node(
        "AdamWOptimizer",
        names,
        ["updated"],
        "adamw",
        domain="com.microsoft",
        adam_mode=0,
        correct_bias=1,
        **settings,
    )
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in names]
    graph = helper.make_graph([node], "adamw", inputs, [onnx.ValueInfoProto(name="updated")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    [described] = json.loads(_ortrain.get_optimizer_formulas(model.SerializeToString()))["groups"]
    return FormulaGroup(described)
