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
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.external_data_helper

from ortrain._files.models import is_ort_format, load_model, naming_the_model
from ortrain._files.writing import replaced_file, write_file
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


def write_copy(model: onnx.ModelProto, path: StrPath, apart: bool | None) -> None:
    """Write a copy of a model: a written model refers to the new file of its weights. `write_models` explains ``apart``."""
    target = Path(os.fspath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    write_models({target: copy}, target.with_name(f"{target.name}.data"), apart)


def write_models(models: dict[Path, onnx.ModelProto], data: Path, apart: bool | None) -> list[Path]:
    """Write models. Their weights may be in one file beside them, which contains each initializer once.

    Parameters
    ----------
    models : dict
        The models by path, in one folder. They are changed.
    data : Path
        The file for the weights, in the same folder. It is written first, and only if a model refers to it.
    apart : bool or None
        Whether weights are written to that file. By default, the file gets the weights of models that are too large for a model
        file, and weights that are in other files already.

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
                content = _content(tensor)
                digest = hashlib.blake2b(content).digest()
                if digest not in places:
                    file.seek(-file.tell() % _PAGE, os.SEEK_CUR)
                    places[digest] = file.tell(), len(content)
                    file.write(content)
                offset, length = places[digest]
                _refer(tensor, {"location": data.name, "offset": str(offset), "length": str(length)})
    for path, model in models.items():
        write_file(path, "model", model.SerializeToString())
    return [*([data] if moved else ()), *models]


def _is_inside(folder: str, location: str) -> bool:
    """Whether a folder contains a file of a name; links and paths that lead out of the folder do not count."""
    path = os.path.realpath(os.path.join(folder, location))
    return os.path.isfile(path) and path.startswith(os.path.join(os.path.realpath(folder), ""))


def _to_move(model: onnx.ModelProto, apart: bool | None) -> Iterator[onnx.TensorProto]:
    """Yield the initializers of a model that are written to the file for weights."""
    every = apart or (apart is None and is_too_large(model))
    for tensor in model.graph.initializer:
        if is_apart(tensor) or (every and _bytes_inside(tensor) > _INSIDE):
            yield tensor


def _bytes_inside(tensor: onnx.TensorProto) -> int:
    if is_apart(tensor) or tensor.data_type == onnx.TensorProto.STRING:
        return 0
    return int(math.prod(tensor.dims)) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def _content(tensor: onnx.TensorProto) -> bytes:
    """Return the elements of an initializer in the byte order and layout of files."""
    loaded = with_data(tensor)
    if loaded.HasField("raw_data"):
        return bytes(loaded.raw_data)
    return bytes(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(loaded)).raw_data)


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
