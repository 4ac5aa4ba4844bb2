"""Weights of a network in the file that an exporter wrote: each under its name, with its values, once.

Exporters merge initializers with equal values, copy a weight that is used twice, transpose and rename weights. So
networks are exported with placeholders, whose values are all different, and :func:`write_weights` finds each
placeholder in the model, however it is named or arranged, and puts the weight in its place.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Container, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from ortrain import _graph

Array = npt.NDArray[Any]
_MOST_AXES = 5  # the search tries all orders of a weight's axes, of five axes 120


def placeholders(weights: Mapping[str, Array]) -> dict[str, Array]:
    """Return an array for each given one, with its type, its shape and slightly different values; no two are equal.

    Integers, which may be indices, and infinities keep their values.
    """
    rng = np.random.default_rng(0)
    made: dict[str, Array] = {}
    seen: set[tuple[Any, ...]] = set()
    for name, weight in weights.items():
        made[name] = weight
        if not _is_floating(weight.dtype):
            continue
        for scale in (1e-3, 1e-2, 1e-1, 1.0):
            # The difference is small, so that code that branches on a value (a scale, a threshold) takes the same branch.
            noise = rng.uniform(0.5, 1.0, weight.shape) * scale
            with np.errstate(all="ignore"):
                made[name] = (weight.astype(np.float64) * (1 + noise) + noise).astype(weight.dtype)
            key = _key(made[name])
            if key not in seen:
                seen.add(key)
                break
    return made


def write_weights(
    model: onnx.ModelProto,
    found: Mapping[str, Array],
    weights: Mapping[str, Array],
    changed_by_runs: Container[str] = (),
) -> list[str]:
    """Replace the placeholders in a model by the weights, each under its own name, in place.

    An initializer or Constant that is a placeholder under another name is renamed. A copy is removed. A
    placeholder that was transposed or reshaped becomes a Transpose and a Reshape of the weight, so
    that the weight has the form that it has in the framework.

    Parameters
    ----------
    model : onnx.ModelProto
        The exporter's model. Functions must be inlined.
    found : Mapping[str, numpy.ndarray]
        The placeholders that were exported, by the names of the weights.
    weights : Mapping[str, numpy.ndarray]
        The weights, with the same names, types and shapes.
    changed_by_runs : container of str
        Weights that change when an exporter runs the network: running statistics. They are recognized by their names.

    Returns
    -------
    list of str
        The names of the weights that are in the model now, in the order of ``weights``. The model does not use the others, or
        an exporter folded their values into other constants.
    """
    return _Writer(model, found, weights, changed_by_runs).write()


class _Writer:
    def __init__(
        self,
        model: onnx.ModelProto,
        found: Mapping[str, Array],
        weights: Mapping[str, Array],
        changed_by_runs: Container[str],
    ) -> None:
        self._model, self._found, self._weights = model, found, weights
        self._changed_by_runs = changed_by_runs
        self._by_key = {_key(array): name for name, array in found.items() if _can_be_found(array)}
        sizes = {array.size for array in found.values()}
        _graph.constants_to_initializers(model, _constants_of_sizes(model, sizes))
        self._taken = _graph.names_in_use(model)
        for inner in _graph.subgraphs(model.graph):
            self._taken |= {name for node in inner.node for name in node.output}
        self._nodes: list[onnx.NodeProto] = []

    def write(self) -> list[str]:
        graph = self._model.graph
        written: set[str] = set()
        renamed: dict[str, str] = {}
        others: list[onnx.TensorProto] = []
        for tensor in graph.initializer:
            array = numpy_helper.to_array(tensor)
            match = self._match(tensor.name, array)
            if match is None:
                others.append(tensor)
                continue
            name, order = match
            written.add(name)
            renamed[tensor.name] = name if order is None else self._arranged(name, order, array.shape)
        for name in written:
            if name in self._taken and name not in renamed:  # another value has the name of the weight
                renamed[name] = self._free(f"{name}_value")
        rename(self._model, renamed)
        in_order = [name for name in self._weights if name in written]
        tensors = [numpy_helper.from_array(np.ascontiguousarray(self._weights[n]), n) for n in in_order]
        tensors += [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in others]
        for tensor in tensors[len(in_order) :]:
            tensor.name = renamed.get(tensor.name, tensor.name)
        del graph.initializer[:]
        graph.initializer.extend(tensors)
        nodes = [*self._nodes, *graph.node]
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)
        return in_order

    def _match(self, name: str, array: Array) -> tuple[str, tuple[int, ...] | None] | None:
        """Return the weight that an initializer stores, and the order of its axes if that differs."""
        known = self._found.get(name)
        if known is not None and _key(known) == _key(array):
            return name, None
        if known is not None and name in self._changed_by_runs and _alike(known, array):
            return name, None
        if not _can_be_found(array):
            return None
        same = self._by_key.get(_key(array))
        if same is not None:
            return same, None
        ordered = np.sort(array, axis=None)
        for candidate, weight in self._found.items():
            if weight.size != array.size or weight.dtype != array.dtype or weight.ndim > _MOST_AXES:
                continue
            if not np.array_equal(np.sort(weight, axis=None), ordered):
                continue
            for order in itertools.permutations(range(weight.ndim)):
                if np.array_equal(weight.transpose(order).ravel(), array.ravel()):
                    return candidate, order
        return None

    def _arranged(self, name: str, order: tuple[int, ...], shape: tuple[int, ...]) -> str:
        """Add nodes that compute a weight with the axes in another order and in another shape; return their result."""
        result = name
        if order != tuple(sorted(order)):
            result = self._free(f"{name}_transposed")
            self._nodes.append(helper.make_node("Transpose", [name], [result], name=result, perm=order))
        if tuple(self._weights[name].shape[axis] for axis in order) != shape:
            source, result = result, self._free(f"{name}_reshaped")
            target = self._free(f"{name}_shape")
            value = numpy_helper.from_array(np.array(shape, np.int64))
            self._nodes.append(helper.make_node("Constant", [], [target], name=target, value=value))
            self._nodes.append(helper.make_node("Reshape", [source, target], [result], name=result))
        return result

    def _free(self, name: str) -> str:
        numbered = (f"{name}_{number}" for number in itertools.count(1))
        found = next(
            n for n in itertools.chain([name], numbered) if n not in self._taken | self._found.keys()
        )
        self._taken.add(found)
        return found


def rename(model: onnx.ModelProto, names: Mapping[str, str]) -> None:
    """Rename values in all graphs of a model at once, except its inputs and initializers; forget their shapes."""
    for graph in (model.graph, *_graph.subgraphs(model.graph)):
        for node in graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]
        for value in graph.output:
            value.name = names.get(value.name, value.name)
        kept = [value for value in graph.value_info if value.name not in names]
        copies = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in kept]
        del graph.value_info[:]
        graph.value_info.extend(copies)


def _is_floating(dtype: np.dtype[Any]) -> bool:
    return helper.np_dtype_to_tensor_dtype(dtype) in _graph.FLOATING


def _can_be_found(array: Array) -> bool:
    """Whether an array can be recognized by its values."""
    return array.size > 0 and _is_floating(array.dtype)


def _alike(one: Array, other: Array) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype


def _key(array: Array) -> tuple[str, tuple[int, ...], bytes]:
    return array.dtype.name, array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()


def _constants_of_sizes(model: onnx.ModelProto, sizes: Container[int]) -> set[str]:
    """Return the floating-point Constants that may be weights by their number of elements."""
    floating = set(_graph.floating_constants(model.graph))
    return {
        node.output[0]
        for node in model.graph.node
        if node.output
        and node.output[0] in floating
        and any(math.prod(a.t.dims) in sizes for a in node.attribute if a.HasField("t"))
    }
