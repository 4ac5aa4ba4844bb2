"""Tying the copies of a parameter that an exporter stored several times.

A language model's head often shares the matrix of the embedding. An exporter that folds the transpose stores a second
initializer, which would be trained separately. If the exporter recorded the source of each initializer, initializers with the
same source belong together. Otherwise two weights are the same parameter if one has the elements of the other in transposed
order. Layers that start as copies of one another have the same elements too, but in the same order: such weights are tied only
if different operators read them, as an embedding and a head do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import onnx

from ortrain import _graph
from ortrain._files.weights import array_of, ends_of
from ortrain._graph.initializers import free_name, remove_initializers
from ortrain.artifacts.choice.export_record import ExportRecord
from ortrain.artifacts.graph.changes import ChangeKind, Choice, WeightChange
from ortrain.artifacts.graph.reads import Read, reads_of

Array = npt.NDArray[np.generic]

#: Matrices with fewer different elements may be equal by coincidence.
_ENOUGH = 8


def tie(
    model: onnx.ModelProto, record: ExportRecord, weights: set[str], choice: Choice
) -> list[WeightChange]:
    """Tie initializers that are one parameter, in place, and return the changes. `weights` are those used as weights."""
    reads = reads_of(model)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    changes = []
    gone: set[str] = set()
    for kept, other, transposed in _pairs(tensors, reads, record, weights, choice):
        if kept in gone or other in gone or kept == other:
            continue
        gone.add(other)
        _replace(model, kept, other, transposed)
        how = f"{kept}, transposed" if transposed else kept
        changes.append(WeightChange(ChangeKind.TIED, other, (kept,), f"the same parameter as {how}"))
    remove_initializers(model, gone)
    return changes


def _pairs(
    tensors: dict[str, onnx.TensorProto],
    reads: dict[str, list[Read]],
    record: ExportRecord,
    weights: set[str],
    choice: Choice,
) -> Iterator[tuple[str, str, bool]]:
    """Yield the initializer to keep, the one to compute from it, and whether the kept one has to be transposed."""
    if choice.by_rule and record.exists:
        yield from _recorded_pairs(tensors, record)
        return
    groups: dict[tuple[object, ...], list[tuple[str, bool]]] = {}
    for candidates in _alike(tensors, [name for name in reads if name in weights or choice.names(name)]):
        for name in candidates:
            array = array_of(tensors[name])
            if np.unique(_bits(array)).size >= _ENOUGH:
                groups.setdefault(_digest(array), []).append((name, False))
                groups.setdefault(_digest(array.T), []).append((name, True))
    for members in groups.values():
        straight = [name for name, transposed in members if not transposed]
        for name, transposed in members:
            for other in straight:
                if name != other and _is_one(reads, name, other, transposed, choice):
                    yield *_ordered(reads, name, other), transposed


def _alike(tensors: dict[str, onnx.TensorProto], names: list[str]) -> Iterator[list[str]]:
    """Yield groups of matrices that may be equal or transposed: with the same lengths and the same elements at the ends."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for name in names:
        if len(tensors[name].dims) == 2 and 0 not in tensors[name].dims:
            ends = ends_of(tensors[name])
            key = ends.dtype, *sorted(tensors[name].dims), *_bits(ends).tolist()
            groups.setdefault(key, []).append(name)
    for group in groups.values():
        if len(group) > 1:
            yield group


def _bits(array: Array) -> Array:
    return array.view(f"u{array.itemsize}")


def _digest(array: Array) -> tuple[object, ...]:
    return array.dtype, *array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()


def _is_one(reads: dict[str, list[Read]], a: str, b: str, transposed: bool, choice: Choice) -> bool:
    if not choice.by_rule:
        return choice.names(a) or choice.names(b)
    return transposed or _operators(reads[a]) != _operators(reads[b])


def _operators(reads: list[Read]) -> set[str]:
    return {read.node.op_type for read in reads}


def _ordered(reads: dict[str, list[Read]], a: str, b: str) -> tuple[str, str]:
    """Return the initializer to keep first: the embedding, or the one with a name from the network."""
    generated = ("onnx::", "val_", "/")

    def rank(name: str) -> tuple[bool, bool, int]:
        return "Gather" not in _operators(reads[name]), name.startswith(generated), list(reads).index(name)

    return (a, b) if rank(a) < rank(b) else (b, a)


def _recorded_pairs(
    tensors: dict[str, onnx.TensorProto], record: ExportRecord
) -> Iterator[tuple[str, str, bool]]:
    """Yield pairs of one parameter by the exporter's record, if the two are equal or transposes of each other."""
    first: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.data_type not in _graph.FLOATING:
            continue
        sources = record.parameters_in([name])
        if len(sources) == 1:
            first.setdefault(sources[0], []).append(name)
    for parameter, names in first.items():
        names = [name for name in names if name == parameter] + [name for name in names if name != parameter]
        for number, other in enumerate(names[1:], 1):
            b = array_of(tensors[other])
            for kept in names[:number]:
                a = array_of(tensors[kept])
                if a.ndim == b.ndim == 2 and a.shape == b.shape[::-1] and np.array_equal(a.T, b):
                    # A matrix that equals its transpose has equal elements, as before training; the layer reads its transpose.
                    yield kept, other, a.shape != b.shape or kept == parameter or not np.array_equal(a, b)
                    break
                if a.shape == b.shape and np.array_equal(a, b):
                    yield kept, other, False
                    break


def _replace(model: onnx.ModelProto, kept: str, other: str, transposed: bool) -> None:
    """Make the readers of an initializer read another one, or its transpose."""
    if not transposed:
        _graph.rename_reads(model.graph, other, kept)
        return
    taken = _graph.names_in_use(model)
    name = free_name(f"{kept}_transposed", taken)
    _graph.rename_reads(model.graph, other, name)
    node = onnx.helper.make_node("Transpose", [kept], [name], name=name, perm=[1, 0])
    model.graph.node.insert(0, node)
