"""Writing nodes of ONNX as formulas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Nodes:
    """Adds nodes and constants to a graph, under names that are not in use in the graph.

    Parameters
    ----------
    graph : onnx.GraphProto
        The graph to extend.
    taken : iterable of str
        Names that the graph has.
    opset : int
        The opset of the model.
    """

    def __init__(self, graph: onnx.GraphProto, taken: Iterable[str], opset: int) -> None:
        self.graph, self.opset = graph, opset
        self._taken = set(taken)
        self._constants: dict[tuple[Any, ...], str] = {}

    def name(self, base: str) -> str:
        """Return `base`, or `base` with a number if the graph has that name."""
        name, number = base, 0
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name

    def add(
        self,
        op_type: str,
        inputs: Sequence[str | Value],
        output: str | None = None,
        **attributes: Any,
    ) -> str:
        """Add a node with one output, by default under a new name; return that name."""
        output = output or self.name(f"step/{op_type}_output_0")
        self.graph.node.append(
            helper.make_node(
                op_type, [str(x) for x in inputs], [output], name=self.name(f"step/{op_type}"), **attributes
            )
        )
        return output

    def constant(self, array: Any) -> str:
        """Return the name of an initializer with a value, which is added unless there is one."""
        array = np.asarray(array)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            name = self.name(f"step/constant_{len(self._constants)}")
            self.graph.initializer.append(numpy_helper.from_array(array, name))
            self._constants[key] = name
        return self._constants[key]

    def value(self, name: str, type: int = TensorProto.FLOAT) -> Value:
        """Return a value of the graph for formulas; `type` is its element type as ONNX numbers it."""
        return Value(self, name, type)


class Value:
    """A value of a graph that is being written. Arithmetic adds nodes; the other operand takes the value's type."""

    def __init__(self, nodes: Nodes, name: str, type: int) -> None:
        self._nodes, self.name, self.type = nodes, name, type

    def __str__(self) -> str:
        return self.name

    def number(self, number: float) -> Value:
        """Return a constant of this value's type."""
        dtype = helper.tensor_dtype_to_np_dtype(self.type)
        return Value(self._nodes, self._nodes.constant(np.array(number, dtype)), self.type)

    def call(self, op_type: str, *others: Value, **attributes: Any) -> Value:
        """Return the output of a node whose first input is this value."""
        return Value(self._nodes, self._nodes.add(op_type, [self, *others], **attributes), self.type)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements, as NumPy names it."""
        return helper.tensor_dtype_to_np_dtype(self.type)

    def reduced(self, op_type: str, axis: int, keepdims: bool = False) -> Value:
        """Return a reduction over an axis. The axis is an attribute of most of these operators before opset 18."""
        if op_type != "ReduceSum" and self._nodes.opset < 18:
            return self.call(op_type, axes=[axis], keepdims=int(keepdims))
        return self.call(op_type, self.integers([axis]), keepdims=int(keepdims))

    def unsqueezed(self, axis: int) -> Value:
        """Return the value with a new axis of one element."""
        return self.call("Unsqueeze", self.integers([axis]))

    def reshaped(self, shape: Sequence[int]) -> Value:
        """Return the elements in another shape."""
        return self.call("Reshape", self.integers(shape))

    def integers(self, numbers: Sequence[int]) -> Value:
        """Return a list of integers, such as axes or a shape."""
        return self._nodes.value(self._nodes.constant(np.array(numbers, np.int64)), TensorProto.INT64)

    def constant(self, array: Any) -> Value:
        """Return an array of this value's type."""
        return self._nodes.value(self._nodes.constant(np.asarray(array).astype(self.dtype)), self.type)

    def as_type(self, type: int) -> Value:
        """Return the value as another element type."""
        if type == self.type:
            return self
        return Value(self._nodes, self._nodes.add("Cast", [self], to=type), type)

    def equals(self, number: float) -> Value:
        """Return a bool: whether the value equals a number."""
        return Value(self._nodes, self._nodes.add("Equal", [self, self.number(number)]), TensorProto.BOOL)

    def above(self, number: float) -> Value:
        """Return a bool: whether the value is greater than a number."""
        return Value(self._nodes, self._nodes.add("Greater", [self, self.number(number)]), TensorProto.BOOL)

    def choose(self, yes: Value, no: Value) -> Value:
        """Return `yes` if this value, a bool, is true, else `no`."""
        return Value(self._nodes, self._nodes.add("Where", [self, yes, no]), yes.type)

    def _with(self, op_type: str, other: Value | float, swapped: bool = False) -> Value:
        right = other.as_type(self.type) if isinstance(other, Value) else self.number(other)
        return right.call(op_type, self) if swapped else self.call(op_type, right)

    def __add__(self, other: Value | float) -> Value:
        return self._with("Add", other)

    __radd__ = __add__

    def __sub__(self, other: Value | float) -> Value:
        return self._with("Sub", other)

    def __rsub__(self, other: float) -> Value:
        return self._with("Sub", other, swapped=True)

    def __mul__(self, other: Value | float) -> Value:
        return self._with("Mul", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Value | float) -> Value:
        return self._with("Div", other)

    def __rtruediv__(self, other: float) -> Value:
        return self._with("Div", other, swapped=True)
