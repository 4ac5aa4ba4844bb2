"""Small edits of graphs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy.typing as npt
import onnx

from ortrain._files.weights import array_of
from ortrain._graph.queries import walk


def free_name(name: str, taken: Iterable[str]) -> str:
    """Return a name, with a number if it is taken."""
    numbered = (f"{name}_{number}" for number in itertools.count(1))
    return next(other for other in itertools.chain([name], numbered) if other not in taken)


def is_read(model: onnx.ModelProto, name: str) -> bool:
    """Whether a node, in subgraphs too, or an output of the model reads a value."""
    return any(output.name == name for output in model.graph.output) or any(
        name in node.input for node in walk(model.graph)
    )


def all_equal(tensor: onnx.TensorProto) -> bool:
    """Whether all elements of a tensor are equal; False for a tensor without elements."""
    array = array_of(tensor)
    return array.size > 0 and bool((array == array.flat[0]).all())


def add_initializer(
    model: onnx.ModelProto, name: str, value: onnx.TensorProto | npt.NDArray[Any]
) -> onnx.TensorProto:
    """Add an initializer with the value of another one or of an array, and return it."""
    added: onnx.TensorProto = model.graph.initializer.add()
    added.CopyFrom(value if isinstance(value, onnx.TensorProto) else onnx.numpy_helper.from_array(value))
    added.name = name
    del added.metadata_props[:]
    if model.ir_version < 4:  # initializers are inputs, too
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, added.data_type, added.dims))
    return added


def remove_initializers(model: onnx.ModelProto, names: Iterable[str]) -> None:
    """Remove initializers, and the declarations of their types."""
    gone = set(names)
    for values in (model.graph.initializer, model.graph.value_info, model.graph.input):
        for place in reversed([i for i, value in enumerate(values) if value.name in gone]):
            del values[place]
