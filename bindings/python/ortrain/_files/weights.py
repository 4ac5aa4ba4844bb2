"""Weights of large models: read one after another, when they are needed, and written to a file next to the model.

A model that :func:`load_with_weights_apart` returns refers to the files of its large initializers. :func:`array_of` reads the
elements of one initializer. So models take little memory, however large their weights are.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import onnx
import onnx.external_data_helper

from ortrain._files.models import is_ort_format, load_model, naming_the_model
from ortrain._files.writing import appending, replaced_file, write_file
from ortrain._support.counts import counted
from ortrain._support.values import StrPath
from ortrain.errors import InvalidModelError

#: The most bytes of a serialized model.
LIMIT = 2**31 - 1
_LEFT_FOR_NODES = 2**24
_LARGE = 2**14  # elements; larger initializers are not read together with their model
_PIECE = 2**20  # elements that `pieces_of` reads at a time
_INSIDE = 1024  # bytes; smaller initializers are always written into the model
_PAGE = 4096  # programs map the data of initializers in pages
_FOLDER = "basepath"


def load_with_weights_apart(path: StrPath) -> onnx.ModelProto:
    """Return the model in a file; large initializers that are external data stay in their files."""
    if is_ort_format(path):
        return load_model(path)
    model = load_model(path, load_external_data=False)
    folder = os.path.dirname(os.path.abspath(path))
    large = [
        tensor
        for tensor in model.graph.initializer
        if onnx.external_data_helper.uses_external_data(tensor) and math.prod(tensor.dims) > _LARGE
    ]
    if model.ir_version < 4:  # initializers are inputs too, and programs may change them
        large = []
    for tensor in large:
        tensor.data_location = onnx.TensorProto.DEFAULT
    with naming_the_model(path):
        onnx.external_data_helper.load_external_data_for_model(model, folder)
    for tensor in large:
        tensor.data_location = onnx.TensorProto.EXTERNAL
        entries = {entry.key: entry.value for entry in tensor.external_data} | {_FOLDER: folder}
        _refer(tensor, entries)
        if not _is_inside(folder, entries.get("location", "")):
            with naming_the_model(path):
                with_data(tensor)  # onnx raises its error about such a path
    return model


def is_apart(tensor: onnx.TensorProto) -> bool:
    """Whether the elements of an initializer are in a file beside the model."""
    return onnx.external_data_helper.uses_external_data(tensor)


def with_data(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """Return an initializer with its elements: the given one, or a copy if its elements are in another file."""
    if not is_apart(tensor):
        return tensor
    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    folder = next((entry.value for entry in copy.external_data if entry.key == _FOLDER), "")
    onnx.external_data_helper.load_external_data_for_tensor(copy, folder)
    return copy


def array_of(tensor: onnx.TensorProto) -> npt.NDArray[Any]:
    """Return the elements of an initializer."""
    kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    # files may store other types more densely than arrays do
    if not is_apart(tensor) or kind.kind not in "biuf":
        return onnx.numpy_helper.to_array(with_data(tensor))
    shaped: npt.NDArray[Any] = _read(tensor, kind, 0, math.prod(tensor.dims)).reshape(tuple(tensor.dims))
    return shaped


def pieces_of(tensor: onnx.TensorProto) -> Iterator[npt.NDArray[Any]]:
    """Yield the elements of an initializer in their order, in small pieces if they are in another file."""
    kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if not is_apart(tensor) or kind.kind not in "biuf":
        yield array_of(tensor).ravel()
        return
    count = math.prod(tensor.dims)
    for first in range(0, count, _PIECE):
        yield _read(tensor, kind, first, min(_PIECE, count - first))


def ends_of(tensor: onnx.TensorProto) -> npt.NDArray[Any]:
    """Return the first and the last element of an initializer that has elements."""
    kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if not is_apart(tensor) or kind.kind not in "biuf":
        return array_of(tensor).ravel()[[0, -1]]
    last = math.prod(tensor.dims) - 1
    return np.concatenate([_read(tensor, kind, first, 1) for first in (0, last)])


def _read(tensor: onnx.TensorProto, kind: np.dtype[Any], first: int, count: int) -> npt.NDArray[Any]:
    """Read some elements of an initializer from its file."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    path, begin = os.path.join(entries[_FOLDER], entries["location"]), int(entries.get("offset", 0))
    found: npt.NDArray[Any] = np.fromfile(path, kind, count, offset=begin + first * kind.itemsize)
    if found.size != count:
        raise InvalidModelError(
            f"the initializer {tensor.name!r} should have {counted(math.prod(tensor.dims), 'element')} in {path}, "
            f"found {first + found.size}"
        )
    return found


def with_all_data(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with the elements of all initializers: the given one, or a copy if weights are in other files."""
    if not any(map(is_apart, model.graph.initializer)):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        tensor.CopyFrom(with_data(tensor))
    return copy


def serialized_beside(model: onnx.ModelProto) -> bytes:
    """Return the bytes of a model whose weights that are in other files stay there: in the folder from which it was loaded."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in filter(is_apart, copy.graph.initializer):
        _refer(tensor, {entry.key: entry.value for entry in tensor.external_data if entry.key != _FOLDER})
    return bytes(copy.SerializeToString())


def is_too_large(model: onnx.ModelProto) -> bool:
    """Whether the elements of initializers inside the model exceed the size of a model file."""
    return sum(map(_bytes_inside, model.graph.initializer)) > LIMIT - _LEFT_FOR_NODES


def taken_out(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Turn initializers in other files into inputs, and all large ones if the model is too large; return them by name."""
    every = is_too_large(model)
    graph = model.graph
    taken = {
        tensor.name: tensor
        for tensor in graph.initializer
        if is_apart(tensor) or (every and math.prod(tensor.dims) > _LARGE)
    }
    if taken:
        kept = [tensor for tensor in graph.initializer if tensor.name not in taken]
        del graph.initializer[:]
        graph.initializer.extend(kept)
        graph.input.extend(
            onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
            for name, tensor in taken.items()
        )
    return taken


def put_back(model: onnx.ModelProto, taken: dict[str, onnx.TensorProto]) -> None:
    """Turn the inputs that :func:`taken_out` made into initializers again, and remove inputs that no node reads."""
    inputs = [value for value in model.graph.input if value.name not in taken]
    if len(inputs) == len(model.graph.input):
        return
    read = {name for node in model.graph.node for name in _reads(node)} | {o.name for o in model.graph.output}
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(tensor for name, tensor in taken.items() if name in read)


def fits_into_a_file(model: onnx.ModelProto) -> bool:
    """Whether a model file can contain a model with all its weights."""
    return sum(map(_bytes, model.graph.initializer)) <= LIMIT - _LEFT_FOR_NODES


def write_copy(model: onnx.ModelProto, path: StrPath, apart: bool | None) -> None:
    """Write a model with one of its weights in memory at a time, besides those that the model contains.

    Parameters
    ----------
    model : onnx.ModelProto
        The model. It is not changed.
    path : str or os.PathLike
        The file. Its folder is created if it does not exist.
    apart : bool or None
        Whether weights are written to a file beside it, with its name and the ending ``.data``. By default they are if the model
        is too large for one file, or has weights in other files.

    Raises
    ------
    ValueError
        When the model is too large for one file, and `apart` is False.
    """
    target = Path(os.fspath(path))
    fits = fits_into_a_file(model)
    if apart is False and not fits:
        raise ValueError(
            f"the model for {path} exceeds the 2 GB that an ONNX file can hold: expected weights in another file"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    if apart or (apart is None and (not fits or any(map(is_apart, model.graph.initializer)))):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        write_models({target: copy}, target.with_name(f"{target.name}.data"), True)
        return
    with replaced_file(target, "model") as file:
        for part in _parts_of_a_file(model):
            file.write(part)


def _parts_of_a_file(model: onnx.ModelProto) -> Iterator[bytes]:
    """Yield the bytes of a model file that contains all weights, those in other files too. The graph is its last field."""
    outer = {field.name: value for field, value in model.ListFields() if field.name != "graph"}
    inner = {field.name: value for field, value in model.graph.ListFields() if field.name != "initializer"}
    graph = onnx.GraphProto(**inner).SerializeToString()
    sizes = list(map(_size_in_a_file, model.graph.initializer))
    heads = [_head(onnx.GraphProto.INITIALIZER_FIELD_NUMBER, size) for size in sizes]
    total = len(graph) + sum(sizes) + sum(map(len, heads))
    yield (
        onnx.ModelProto(**outer).SerializeToString()
        + _head(onnx.ModelProto.GRAPH_FIELD_NUMBER, total)
        + graph
    )
    for tensor, head in zip(model.graph.initializer, heads, strict=True):
        if is_apart(tensor):
            yield head + _form(tensor) + _head(onnx.TensorProto.RAW_DATA_FIELD_NUMBER, _length(tensor))
            yield from _content(tensor)
        else:
            yield head
            yield tensor.SerializeToString()


def _size_in_a_file(tensor: onnx.TensorProto) -> int:
    if not is_apart(tensor):
        return int(tensor.ByteSize())
    length = _length(tensor)
    return len(_form(tensor)) + len(_head(onnx.TensorProto.RAW_DATA_FIELD_NUMBER, length)) + length


def _length(tensor: onnx.TensorProto) -> int:
    """Return the bytes of an initializer that is in another file."""
    length = next((int(entry.value) for entry in tensor.external_data if entry.key == "length"), None)
    return sum(map(len, _content(tensor))) if length is None else length


def _form(tensor: onnx.TensorProto) -> bytes:
    """Return the fields of an initializer besides its elements."""
    names = ("name", "data_type", "dims", "doc_string", "metadata_props")
    return bytes(onnx.TensorProto(**{name: getattr(tensor, name) for name in names}).SerializeToString())


def _head(number: int, length: int) -> bytes:
    """Return what stands before a field of bytes in a protobuf message: its number, its kind (2) and its length."""
    return _varint(number << 3 | 2) + _varint(length)


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def write_models(models: dict[Path, onnx.ModelProto], data: Path, apart: bool | None) -> list[Path]:
    """Write models. Their weights may be in one file beside them, which contains each initializer once.

    Parameters
    ----------
    models : dict
        The models by path, in one folder. They are changed.
    data : Path
        The file for the weights, in the same folder. It is written first, and only if a model refers to it.
    apart : bool or None
        Whether weights are written to that file. By default they are if a model is too large for a model file, or has weights
        in another file already. Weights in other files are always written to it.

    Returns
    -------
    list of Path
        The files that were written.
    """
    moved = [tensor for model in models.values() for tensor in _to_move(model, apart)]
    if moved:
        with replaced_file(data, "weights") as file:
            places: dict[bytes, tuple[int, int]] = {}
            for tensor in moved:
                digest = _digest(tensor)
                if digest not in places:
                    places[digest] = _append(tensor, file)
                offset, length = places[digest]
                _refer(tensor, {"location": data.name, "offset": str(offset), "length": str(length)})
    for path, model in models.items():
        write_file(path, "model", model.SerializeToString())
    return [*([data] if moved else ()), *models]


class Spill:
    """A temporary file for weights that an edit of a model makes, so that only one of them is in memory at a time.

    Parameters
    ----------
    path : Path, optional
        The file. Without it, weights stay in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path

    def moved(self, value: onnx.TensorProto | npt.NDArray[Any]) -> onnx.TensorProto:
        """Return an initializer with a value. The elements of a large array are in the file, where `array_of` reads them.

        A model that gets the value instead keeps its memory even if the initializer is replaced: messages of protobuf free
        nothing before they are dropped.
        """
        if self._path is None or isinstance(value, onnx.TensorProto) or value.nbytes <= _LARGE:
            return value if isinstance(value, onnx.TensorProto) else onnx.numpy_helper.from_array(value)
        with appending(self._path, "weights"), open(self._path, "ab") as file:
            offset = _begin(file)
            file.write(np.ascontiguousarray(value).ravel().view(np.uint8).data)
        kind = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        made = onnx.TensorProto(data_type=kind, dims=value.shape)
        place = {"location": self._path.name, "offset": str(offset), "length": str(value.nbytes)}
        _refer(made, place | {_FOLDER: str(self._path.parent)})
        return made


def _begin(file: BinaryIO) -> int:
    """Move to the next page of a file, and return its offset."""
    file.seek(-file.tell() % _PAGE, os.SEEK_CUR)
    return file.tell()


def _append(tensor: onnx.TensorProto, file: BinaryIO) -> tuple[int, int]:
    """Write the elements of an initializer to the end of a file; return where they begin, and their bytes."""
    begin = _begin(file)
    for part in _content(tensor):
        file.write(part)
    return begin, file.tell() - begin


def _digest(tensor: onnx.TensorProto) -> bytes:
    found = hashlib.blake2b()
    for part in _content(tensor):
        found.update(part)
    return found.digest()


def _is_inside(folder: str, location: str) -> bool:
    """Whether a folder contains a file of a name; links and paths that lead out of the folder do not count."""
    path = os.path.realpath(os.path.join(folder, location))
    return os.path.isfile(path) and path.startswith(os.path.join(os.path.realpath(folder), ""))


def _to_move(model: onnx.ModelProto, apart: bool | None) -> Iterator[onnx.TensorProto]:
    """Yield the initializers of a model that are written to the file for weights."""
    is_split = any(map(is_apart, model.graph.initializer))
    every = apart or (apart is None and (is_split or is_too_large(model)))
    for tensor in model.graph.initializer:
        if is_apart(tensor) or (every and _bytes_inside(tensor) > _INSIDE):
            yield tensor


def _bytes_inside(tensor: onnx.TensorProto) -> int:
    return 0 if is_apart(tensor) else _bytes(tensor)


def _bytes(tensor: onnx.TensorProto) -> int:
    if tensor.data_type == onnx.TensorProto.STRING:
        return 0
    return int(math.prod(tensor.dims)) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def _content(tensor: onnx.TensorProto) -> Iterator[bytes]:
    """Yield the elements of an initializer in the byte order and layout of files, in pieces if they are in another file."""
    kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if is_apart(tensor) and kind.kind in "biuf":
        yield from (piece.tobytes() for piece in pieces_of(tensor))
        return
    loaded = with_data(tensor)
    if not loaded.HasField("raw_data"):
        loaded = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(loaded))
    yield loaded.raw_data


def _refer(tensor: onnx.TensorProto, entries: dict[str, str]) -> None:
    """Make an initializer refer to a file with its elements."""
    reference = onnx.TensorProto(
        name=tensor.name,
        data_type=tensor.data_type,
        dims=tensor.dims,
        doc_string=tensor.doc_string,
        metadata_props=tensor.metadata_props,
        data_location=onnx.TensorProto.EXTERNAL,
    )
    for key, value in entries.items():
        reference.external_data.add(key=key, value=value)
    tensor.CopyFrom(reference)


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the values that a node and its subgraphs read."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
            for inner in graph.node:
                yield from _reads(inner)
            yield from (output.name for output in graph.output)
