"""Keeping each row of a parameter once where an exporter stored it several times.

With a fixed batch, the exporter folds the expansion of a class token to the batch, and the lookup of position embeddings
or relative biases at fixed positions. Training would change the copies of a row independently. So the copies become one row
again, and nodes repeat this row.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx

from ortrain import _graph
from ortrain._files.weights import array_of
from ortrain._graph.initializers import add_initializer, free_name, remove_initializers
from ortrain.artifacts.choice.export_record import ExportRecord, function_of
from ortrain.artifacts.graph.changes import ChangeKind, WeightChange

Array = npt.NDArray[np.generic]

#: Functions of PyTorch that copy elements, some of them several times.
COPYING = frozenset(
    {
        "_to_copy", "_unsafe_index", "_unsafe_view", "alias", "cat", "clone", "contiguous", "convert_element_type_default",
        "detach", "embedding", "expand", "flatten", "gather", "getitem", "index", "index_select", "narrow", "permute",
        "repeat", "reshape", "select", "slice", "split", "squeeze", "stack", "t", "tile", "transpose", "unfold",
        "unsqueeze", "val", "view",
    }
)  # fmt: skip

#: Shorter rows may be equal by coincidence.
_ROW = 4


def unrepeat(model: onnx.ModelProto, record: ExportRecord, weights: set[str]) -> list[WeightChange]:
    """Replace weights with repeated rows in place, and return the changes. `weights` are the initializers used as weights."""
    changes = []
    for tensor in list(model.graph.initializer):
        sources = record.parameters_in(record.sources_of(tensor.name) or ())
        function = function_of(tensor.name)
        if tensor.name not in weights or len(sources) != 1 or function not in COPYING - {"val"}:
            continue
        array = array_of(tensor)
        kept = _with_repeated_axes_once(array, function)
        rows = _rows(kept)
        if kept.shape == array.shape and rows is None:
            continue
        changes.append(_apply(model, record, tensor.name, array, kept, rows, sources[0]))
    return changes


def _with_repeated_axes_once(array: Array, function: str) -> Array:
    """Return an array with length 1 along each axis along which all slices are equal.

    If all elements are equal, only the name of the function shows what was repeated: a batch is the first axis.
    """
    if array.ndim < 2 or array.size == 0:
        return array
    if (array == array.flat[0]).all():
        return array[:1] if function == "expand" else array
    for axis in range(array.ndim):
        first = array.take([0], axis)
        if (array == first).all():
            array = first
    return array


def _rows(array: Array) -> tuple[Array, npt.NDArray[np.int64], int] | None:
    """Return the different vectors along an axis, the index among them for each place, and the axis.

    None if all vectors differ.
    """
    if array.size == 0 or (array == array.flat[0]).all():
        return None
    for axis in reversed(range(array.ndim)):
        length = array.shape[axis]
        vectors = np.moveaxis(array, axis, -1).reshape(-1, length)
        if length < _ROW or len(vectors) < 2:
            continue
        bits = np.ascontiguousarray(vectors).view(f"u{array.itemsize}")
        _, chosen, places = np.unique(bits, axis=0, return_index=True, return_inverse=True)
        if len(chosen) < len(vectors):
            others = np.delete(np.array(array.shape), axis)
            return vectors[chosen], places.reshape(others).astype(np.int64), axis
    return None


def _apply(
    model: onnx.ModelProto,
    record: ExportRecord,
    name: str,
    array: Array,
    kept: Array,
    rows: tuple[Array, npt.NDArray[np.int64], int] | None,
    source: str,
) -> WeightChange:
    """Replace an initializer by a smaller one and nodes that compute its value."""
    taken = _graph.names_in_use(model)
    whole = rows is None and function_of(name) == "expand" and source not in taken
    parameter = source if whole else free_name(f"{source}.rows", taken)
    remove_initializers(model, [name])
    add_initializer(model, parameter, kept if rows is None else rows[0])
    if not whole:
        record.note(model, parameter, [source])
    nodes = []
    value = parameter
    if rows is not None:
        _, places, axis = rows
        add_initializer(model, f"{parameter}_places", places)
        last = axis == kept.ndim - 1
        value = name if last and kept.shape == array.shape else f"{parameter}_looked_up"
        nodes.append(onnx.helper.make_node("Gather", [parameter, f"{parameter}_places"], [value], name=value))
        if not last:
            order = list(range(kept.ndim - 1))
            order.insert(axis, kept.ndim - 1)
            moved = name if kept.shape == array.shape else f"{parameter}_moved"
            nodes.append(onnx.helper.make_node("Transpose", [value], [moved], name=moved, perm=order))
            value = moved
    if kept.shape != array.shape:
        add_initializer(model, f"{parameter}_shape", np.array(array.shape, np.int64))
        nodes.append(onnx.helper.make_node("Expand", [value, f"{parameter}_shape"], [name], name=name))
    for place, node in enumerate(nodes):
        model.graph.node.insert(place, node)
    size = f"{kept.size if rows is None else rows[0].size} of its {array.size} elements"
    return WeightChange(
        ChangeKind.UNREPEATED,
        name,
        (parameter,),
        f"{size} are different; {parameter} stores these, and nodes repeat them",
    )
