"""Changes of single nodes with the batch size in a constant, so that the nodes take the batch size from the model's input."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from ortrain.artifacts.graph.batch_layout import Layout

Array = npt.NDArray[Any]
Nodes = list[onnx.NodeProto]

_TO_THE_END = np.iinfo(np.int64).max


@dataclass
class Value:
    """A value of the model: for batches of the old size, and for one of the new size."""

    before: list[Array]
    """One array for each batch; a single array if the value does not depend on the inputs."""
    after: Array
    layout: Layout

    @property
    def is_constant(self) -> bool:
        """Whether the value depends on neither the data nor the batch size."""
        return self.layout.axis is None and np.array_equal(self.before[0], self.after)


class Repairs:
    """Makes the nodes that replace a node.

    Parameters
    ----------
    rows : int
        The batch size that the model has.
    size : str
        Name of the value that holds the batch size, int64 of shape [1].
    name : callable
        Returns a name that the model does not have yet.
    """

    def __init__(self, rows: int, size: str, name: Callable[[str], str]) -> None:
        self.rows, self.size, self._name = rows, size, name

    # ---- of nodes whose data have rows ----

    def local(self, node: onnx.NodeProto, values: Mapping[str, Value]) -> list[Nodes]:
        """Return candidates to replace a node that receives rows but has their number in a constant, the likeliest first."""
        make = {
            "Reshape": self._reshape,
            "Expand": self._expand,
            "Slice": self._slice,
            "Resize": self._resize,
        }
        if node.op_type not in make or node.domain not in ("", "ai.onnx") or len(node.input) < 2:
            return []
        data = values[node.input[0]]
        if data.layout.axis is None or not all(values[name].is_constant for name in node.input[1:] if name):
            return []
        return list(make[node.op_type](node, values, data))

    def _reshape(self, node: onnx.NodeProto, values: Mapping[str, Value], data: Value) -> Iterator[Nodes]:
        shape = self._resolved(values[node.input[1]].before[0], data.before[0], node)
        if data.before[0].size == 0:
            return
        for axis in self._axes_of_rows(shape, data.layout.outer):
            yield self._with_input(
                node, 1, np.array([-1 if at == axis else dim for at, dim in enumerate(shape)], np.int64)
            )

    @staticmethod
    def _resolved(shape: Array, data: Array, node: onnx.NodeProto) -> list[int]:
        keeps_zero = any(attribute.name == "allowzero" and attribute.i for attribute in node.attribute)
        found = [
            data.shape[axis] if dim == 0 and not keeps_zero else int(dim) for axis, dim in enumerate(shape)
        ]
        if -1 in found:
            known = int(np.prod([dim for dim in found if dim != -1], dtype=np.int64))
            found[found.index(-1)] = data.size // max(known, 1)
        return found

    def _axes_of_rows(self, shape: list[int], outer: int) -> list[int]:
        """Return the dimensions that may contain the rows, which come after ``outer`` blocks in memory.

        If the batch has only one row, several dimensions qualify: first a dimension that contains only the rows, then a
        dimension that begins with them. In all other cases there is at most one.
        """
        candidates, before = [], 1
        for axis, dim in enumerate(shape):
            after = before * dim
            if outer % before == 0 and after % (outer * self.rows) == 0:
                candidates.append((dim != self.rows, before != outer, axis))
            before = after
        return [axis for *_, axis in sorted(candidates)]

    def _expand(self, node: onnx.NodeProto, values: Mapping[str, Value], data: Value) -> Iterator[Nodes]:
        shape = values[node.input[1]].before[0].copy()
        assert data.layout.axis is not None
        axis = data.layout.axis + len(shape) - data.before[0].ndim
        if axis >= 0 and shape[axis] == data.before[0].shape[data.layout.axis]:
            shape[axis] = 1  # an expanded dimension of 1 keeps the dimension of the data
            yield self._with_input(node, 1, shape)

    def _slice(self, node: onnx.NodeProto, values: Mapping[str, Value], data: Value) -> Iterator[Nodes]:
        starts, ends, *others = (values[name].before[0] if name else None for name in node.input[1:])
        assert starts is not None
        assert ends is not None
        axes = others[0] if others and others[0] is not None else np.arange(len(starts))
        steps = others[1] if len(others) > 1 and others[1] is not None else np.ones(len(starts))
        shape, axis = data.before[0].shape, data.layout.axis
        assert axis is not None
        for number in np.flatnonzero(axes % len(shape) == axis):
            if starts[number] == 0 and steps[number] == 1 and ends[number] == shape[axis]:
                changed = ends.astype(np.int64)
                changed[number] = _TO_THE_END
                yield self._with_input(node, 2, changed.astype(ends.dtype))

    def _resize(self, node: onnx.NodeProto, values: Mapping[str, Value], data: Value) -> Iterator[Nodes]:
        axis = data.layout.axis
        if len(node.input) > 3 and node.input[3] and axis is not None and data.layout.factor == 1:
            yield self._with_size(node, 3, values[node.input[3]].before[0], axis)

    # ---- of nodes without rows, whose result has to get them ----

    def sources(self, node: onnx.NodeProto, values: Mapping[str, Value]) -> Iterator[Nodes]:
        """Yield candidates to replace a node whose number of rows is a constant."""
        if node.domain not in ("", "ai.onnx") or not all(
            values[name].is_constant for name in node.input if name
        ):
            return
        kind = node.op_type
        if kind in ("Expand", "Tile") and len(node.input) == 2:
            data, counts = (values[name].before[0] for name in node.input)
            shape = [1] * (len(counts) - data.ndim) + list(data.shape)
            for axis in self._axes(counts):
                if kind == "Tile" or shape[axis] == 1:
                    yield self._with_size(node, 1, counts, axis)
        elif kind == "ConstantOfShape":
            dims = values[node.input[0]].before[0]
            for axis in self._axes(dims):
                yield self._with_size(node, 0, dims, axis)
        elif kind == "Range" and values[node.input[1]].before[0] == self.rows:
            scalar, shape = self._name("rows"), self._constant(np.array([], np.int64), "shape")
            typed = self._name("rows")
            changed = copy.deepcopy(node)
            changed.input[1] = typed
            kind_of_number = onnx.helper.np_dtype_to_tensor_dtype(values[node.input[1]].before[0].dtype)
            yield [
                shape,
                onnx.helper.make_node("Reshape", [self.size, shape.output[0]], [scalar], name=scalar),
                onnx.helper.make_node("Cast", [scalar], [typed], name=typed, to=kind_of_number),
                changed,
            ]

    def constants(self, name: str, array: Array) -> Iterator[Nodes]:
        """Yield what may replace a constant: its first row for all rows, and for integers a multiple of the row's number."""
        for axis in range(array.ndim):
            if axis not in self._axes(array.shape) or array.size == 0:
                continue
            first = array.take([0], axis)
            row = self._constant(first, name)
            if (array == first).all():
                expand = onnx.helper.make_node("Expand", [row.output[0], ""], [name], name=self._name(name))
                yield [row, *self._with_size(expand, 1, np.array(array.shape, np.int64), axis)]
            elif array.dtype == np.int64 and array.shape[axis] == self.rows:
                increase = array.take([1], axis) - first
                numbers = np.arange(self.rows).reshape([-1 if at == axis else 1 for at in range(array.ndim)])
                if (array == first + increase * numbers).all():
                    yield self._progression(name, row, increase, axis)

    def _progression(self, name: str, row: onnx.NodeProto, increase: Array, axis: int) -> Nodes:
        """Return nodes that compute a value whose row i is the first row plus i times an increase."""
        scalar = self._constant(np.array([], np.int64), "shape")
        start, step = (
            self._constant(np.array(0, np.int64), "start"),
            self._constant(np.array(1, np.int64), "step"),
        )
        column = self._constant(
            np.array([-1 if at == axis else 1 for at in range(increase.ndim)], np.int64), "shape"
        )
        factor = self._constant(increase, "increase")
        rows, numbers, shaped, grown = (
            self._name(what) for what in ("rows", "numbers", "numbers", "numbers")
        )
        return [
            row, scalar, start, step, column, factor,
            onnx.helper.make_node("Reshape", [self.size, scalar.output[0]], [rows], name=rows),
            onnx.helper.make_node("Range", [start.output[0], rows, step.output[0]], [numbers], name=numbers),
            onnx.helper.make_node("Reshape", [numbers, column.output[0]], [shaped], name=shaped),
            onnx.helper.make_node("Mul", [shaped, factor.output[0]], [grown], name=grown),
            onnx.helper.make_node("Add", [grown, row.output[0]], [name], name=self._name(name)),
        ]  # fmt: skip

    def _axes(self, counts: Sequence[int] | Array) -> list[int]:
        """Return the indices of sizes that may be the number of rows or a multiple of it, smaller sizes first."""
        if self.rows == 1:  # every size is a multiple of 1
            return [axis for axis, count in enumerate(counts) if count == 1]
        multiples = [axis for axis, count in enumerate(counts) if count > 0 and count % self.rows == 0]
        return sorted(multiples, key=lambda axis: int(counts[axis]))

    # ---- parts ----

    def _constant(self, value: Array, what: str) -> onnx.NodeProto:
        name = self._name(what)
        return onnx.helper.make_node(
            "Constant", [], [name], name=name, value=onnx.numpy_helper.from_array(value)
        )

    def _with_input(self, node: onnx.NodeProto, number: int, value: Array) -> Nodes:
        constant = self._constant(value, "shape")
        changed = copy.deepcopy(node)
        changed.input[number] = constant.output[0]
        return [constant, changed]

    def _with_size(self, node: onnx.NodeProto, number: int, counts: Array, axis: int) -> Nodes:
        """Replace one of the sizes that a node takes by the batch size, or by the same multiple of the batch size."""
        parts: Nodes = []
        names = []
        factor = int(counts[axis]) // self.rows
        for piece in (counts[:axis], None, counts[axis + 1 :]):
            if piece is None and factor == 1:
                names.append(self.size)
            elif piece is None:
                times = self._constant(np.array([factor], np.int64), "factor")
                names.append(self._name("rows"))
                parts += [
                    times,
                    onnx.helper.make_node("Mul", [self.size, times.output[0]], [names[-1]], name=names[-1]),
                ]
            elif len(piece):
                parts.append(self._constant(piece.astype(np.int64), "shape"))
                names.append(parts[-1].output[0])
        joined = self._name("shape")
        changed = copy.deepcopy(node)
        changed.input[number] = joined
        return [*parts, onnx.helper.make_node("Concat", names, [joined], name=joined, axis=0), changed]
