"""Arithmetic on values of a model, so that a loss reads like its formula."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortrain import _graph
from ortrain.onnxblock.blocks import Block


class Value:
    """A value of the model that a block extends.

    Parameters
    ----------
    block : Block
        The block that adds nodes.
    name : str
        Name of the value.
    like : str
        Name of the value whose element type constants get.
    """

    def __init__(self, block: Block, name: str, like: str) -> None:
        self.block, self.name, self.like = block, name, like

    def apply(self, op_type: str, *others: Value | float, **attributes: Any) -> Value:
        """Add a node with this value as its first input."""
        inputs = [self.name, *(self._other(other) for other in others)]
        return Value(self.block, self.block._add(op_type, inputs, **attributes), self.like)

    def _other(self, other: Value | float) -> str:
        return other.name if isinstance(other, Value) else self.block._add_number("number", other, self.like)

    def number(self, value: float) -> Value:
        """Return a constant."""
        return Value(self.block, self._other(value), self.like)

    def __add__(self, other: Value | float) -> Value:
        return self.apply("Add", other)

    def __sub__(self, other: Value | float) -> Value:
        return self.apply("Sub", other)

    def __rsub__(self, other: float) -> Value:
        return self.number(other).apply("Sub", self)

    def __mul__(self, other: Value | float) -> Value:
        return self.apply("Mul", other)

    def __truediv__(self, other: Value | float) -> Value:
        return self.apply("Div", other)

    def __neg__(self) -> Value:
        return self.apply("Neg")

    __radd__, __rmul__ = __add__, __mul__

    def maximum(self, other: Value | float) -> Value:
        """Return the larger of two values, element by element."""
        return self.apply("Max", other)

    def minimum(self, other: Value | float) -> Value:
        """Return the smaller of two values, element by element."""
        return self.apply("Min", other)

    def where(self, condition: Value, other: Value | float) -> Value:
        """Return this value where a condition holds, and another elsewhere."""
        name = self.block._add("Where", [condition.name, self.name, self._other(other)])
        return Value(self.block, name, self.like)

    def cast(self) -> Value:
        """Return the value with the element type of constants."""
        return self.apply("Cast", to=_graph.element_type(self.block.base, self.like))

    def _axes(self, name: str, axes: Sequence[int], **attributes: Any) -> Value:
        opset = _graph.opset_of(self.block.base) or 13
        if opset >= (13 if name in ("ReduceSum", "Unsqueeze", "Squeeze") else 18):
            places = self.block._add_initializer("axes", np.array(axes, np.int64))
            return Value(self.block, self.block._add(name, [self.name, places], **attributes), self.like)
        return self.apply(name, axes=list(axes), **attributes)

    def sum(self, axes: Sequence[int], keepdims: bool = False) -> Value:
        """Return sums over dimensions."""
        return self._axes("ReduceSum", axes, keepdims=int(keepdims))

    def mean(self, axes: Sequence[int]) -> Value:
        """Return means over dimensions."""
        return self._axes("ReduceMean", axes, keepdims=0)

    def log_sum_exp(self, axes: Sequence[int]) -> Value:
        """Return the logarithms of the sums of exponentials over dimensions."""
        return self._axes("ReduceLogSumExp", axes, keepdims=0)

    def total(self) -> Value:
        """Return the sum of all elements."""
        return self.apply("ReduceSum", keepdims=0)

    def unsqueeze(self, axes: Sequence[int]) -> Value:
        """Insert dimensions of one element."""
        return self._axes("Unsqueeze", axes)

    def rows(self) -> Value:
        """Return the elements of each sample as a row."""
        return self.apply("Flatten", axis=1)
