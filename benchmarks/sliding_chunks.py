"""Sliding-window attention as PyTorch's TorchScript exporter writes it.

The graph has thousands of small nodes of shape arithmetic, tensors filled in place by ScatterND, and masks that NonZero
turns into indices. Exports of Longformer contain such a graph. For an assignment to a slice (`chunks[:, 1] = x[:, 8:24]`), the
exporter writes a Range for each axis, which is sliced, expanded and concatenated to indices. For `scores[mask] = -1e4`, it
writes a NonZero, whose number of results depends on the mask.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]

LARGEST = np.iinfo(np.int64).max


class Writer:
    """Writes nodes as the exporter does: each constant is a node where it is used."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []

    def __call__(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"/{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [f"{name}_output_0"], name, **attributes))
        return f"{name}_output_0"

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        return self("Constant", value=numpy_helper.from_array(np.array(value, dtype)))

    def size(self, x: str, axis: int) -> str:
        """Write x.size(axis)."""
        return self("Gather", self("Shape", x), self.constant(axis), axis=0)

    def shape(self, *sizes: str | int) -> str:
        """Write a list of sizes, some of which are computed."""
        parts = [
            self.constant([s]) if isinstance(s, int) else self("Unsqueeze", s, self.constant([0]))
            for s in sizes
        ]
        return self("Concat", *parts, axis=0)

    def slice(self, x: str, axis: int, start: str | int, end: str | int) -> str:
        """Write x[..., start:end, ...]."""
        bounds = [
            self.constant([b]) if isinstance(b, int) else self("Unsqueeze", b, self.constant([0]))
            for b in (start, end)
        ]
        return self("Slice", x, *bounds, self.constant([axis]), self.constant([1]))

    def put(self, x: str, places: list[tuple[str | int, str | int]], values: str) -> str:
        """Write x[a:b, c:d, ...] = values, for slices of the leading axes."""
        indices = []
        for axis, (start, end) in enumerate(places):
            every = self("Range", self.constant(0), self.size(x, axis), self.constant(1))
            index = self.slice(every, 0, start, end)
            dims = [1] * len(places)
            dims[axis] = -1
            indices.append(self("Reshape", index, self.constant(dims)))
        total = indices[0]
        for index in indices[1:]:
            total = self("Add", total, index)
        grid = self("Shape", total)
        columns = [
            self("Unsqueeze", self("Expand", index, grid), self.constant([len(places)])) for index in indices
        ]
        where = self("Concat", *columns, axis=-1)
        rest = self.slice(self("Shape", x), 0, len(places), LARGEST)
        wanted = self("Concat", grid, rest, axis=0)
        # Sizes of -1 keep the values' own, as in the exporter's Expand.
        unset = self("ConstantOfShape", self("Shape", wanted), value=numpy_helper.from_array(np.array([1])))
        kept = self("Equal", wanted, self("Mul", unset, self.constant(-1)))
        return self("ScatterND", x, where, self("Expand", values, self("Where", kept, unset, wanted)))

    def fill(self, x: str, mask: str, value: float, dtype: Any) -> str:
        """Write x[mask] = value."""
        where = self("Transpose", self("NonZero", mask), perm=[1, 0])
        count = self.size(where, 0)
        filled = self("Expand", self.constant(value, dtype), self.shape(count))
        return self("ScatterND", x, where, filled)


def sliding_chunks(
    layers: int = 4, chunks: int = 8, width: int = 8, dtype: Any = np.float32
) -> onnx.ModelProto:
    """Return a model of `layers` layers that attend to `chunks` overlapping chunks of the sequence each.

    Parameters
    ----------
    layers : each has 2 * `chunks` assignments to slices, and `chunks` + 2 `NonZero`.
    width : of the hidden vectors; half a chunk has as many positions.

    Returns
    -------
    onnx.ModelProto
        Inputs `x` [batch, (chunks + 1) * width, width] and `attended` bool [batch, length]; output `y`
        [batch, length, width].
    """
    rng = np.random.default_rng(11)
    w, weights = Writer(), []
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def weight(name: str, *shape: int) -> str:
        value = (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(dtype)
        weights.append(numpy_helper.from_array(value, name))
        return name

    length = (chunks + 1) * width
    hidden = "x"
    for layer in range(layers):
        projected = {
            part: w("MatMul", hidden, weight(f"layer{layer}.{part}", width, width))
            for part in ("q", "k", "v")
        }
        # Overlapping chunks, copied one by one into an empty tensor.
        batch, features = w.size(hidden, 0), w.size(hidden, 2)
        chunked = {}
        for part in ("q", "k"):
            empty = np.zeros(1, dtype)
            shape = w.shape(batch, chunks, 2 * width, features)
            whole = w("ConstantOfShape", shape, value=numpy_helper.from_array(empty))
            for c in range(chunks):
                start = w("Mul", w.constant(c), w.constant(width))
                piece = w.slice(projected[part], 1, start, w("Add", start, w.constant(2 * width)))
                whole = w.put(whole, [(0, LARGEST), (c, c + 1)], w("Unsqueeze", piece, w.constant([1])))
            chunked[part] = whole
        turned = w("Transpose", chunked["k"], perm=[0, 1, 3, 2])
        scores = w("MatMul", chunked["q"], turned)
        scores = w("Div", scores, w.constant(np.sqrt(width), dtype))
        # Positions that are not attended to, and in every second chunk scores that are small, are filled in place.
        outputs = w("ConstantOfShape", w("Shape", hidden), value=numpy_helper.from_array(np.zeros(1, dtype)))
        hidden_positions = w("Not", "attended")
        for c in range(chunks):
            of_chunk = w("Gather", scores, w.constant(c), axis=1)
            masked = w.slice(hidden_positions, 1, c * width, (c + 2) * width)
            mask = w("Unsqueeze", masked, w.constant([1]))
            if c % 2:
                mask = w("Or", mask, w("Less", of_chunk, w.constant(-0.9, dtype)))
            else:
                mask = w("Expand", mask, w("Shape", of_chunk))
            attention = w("Softmax", w.fill(of_chunk, mask, -1e4, dtype), axis=-1)
            values = w.slice(projected["v"], 1, c * width, (c + 2) * width)
            context = w("MatMul", attention, values)
            part = w.slice(outputs, 1, c * width, (c + 2) * width)
            outputs = w.put(outputs, [(0, LARGEST), (c * width, (c + 2) * width)], w("Add", part, context))
        # Global attention: the rows of positions that are attended to see each other's mean.
        rows = w("Transpose", w("NonZero", "attended"), perm=[1, 0])
        chosen = w("GatherND", hidden, rows)
        mean = w("ReduceMean", chosen, axes=[0], keepdims=1)
        seen = w("MatMul", mean, weight(f"layer{layer}.global", width, width))
        wide = w("Expand", seen, w("Shape", chosen))
        again = w("Transpose", w("NonZero", "attended"), perm=[1, 0])
        old = w("GatherND", outputs, again)
        outputs = w("ScatterND", outputs, again, w("Add", old, wide))
        dense = w("MatMul", outputs, weight(f"layer{layer}.dense", width, width))
        hidden = w("Tanh", w("Add", dense, hidden))
    w.nodes.append(helper.make_node("Identity", [hidden], ["y"], "/Identity"))
    graph = helper.make_graph(
        w.nodes,
        "sliding_chunks",
        [
            helper.make_tensor_value_info("x", kind, ["batch", length, width]),
            helper.make_tensor_value_info("attended", TensorProto.BOOL, ["batch", length]),
        ],
        [helper.make_tensor_value_info("y", kind, ["batch", length, width])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def batch_of(model: onnx.ModelProto, size: int, seed: int) -> dict[str, Array]:
    """Return inputs of the model and, under `target`, the target of its output."""
    rng = np.random.default_rng(seed)
    kind, dims = (
        model.graph.input[0].type.tensor_type.elem_type,
        model.graph.input[0].type.tensor_type.shape.dim,
    )
    shape = (size, dims[1].dim_value, dims[2].dim_value)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    return {
        "x": rng.standard_normal(shape).astype(dtype),
        "attended": rng.random(shape[:2]) < 0.8,
        "target": rng.standard_normal(shape).astype(dtype),
    }
