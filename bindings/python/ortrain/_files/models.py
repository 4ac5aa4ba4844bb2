"""Model files as messages of ``onnx``: ONNX files, and files in ORT format."""

from __future__ import annotations

import os
from pathlib import Path

import onnx

from ortrain import _ortrain
from ortrain._files.reading import open_file
from ortrain._files.writing import write_file
from ortrain._support.values import StrPath

_IDENTIFIER = slice(4, 8)


def is_ort_format(path: StrPath) -> bool:
    """Return whether a file is in ORT format, by its identifier."""
    with open_file(path, "model") as file:
        return file.read(8)[_IDENTIFIER] == b"ORTM"


def load_model(path: StrPath, load_external_data: bool = True) -> onnx.ModelProto:
    """Return the model in a file of either format."""
    if is_ort_format(path):
        return onnx.load_from_string(_ortrain.convert_model(Path(path).read_bytes(), "ONNX"))
    return onnx.load(path, load_external_data=load_external_data)


def write_model(model: onnx.ModelProto, path: StrPath) -> Path:
    """Write an ONNX file, in a folder that is created if it does not exist; return its path."""
    target = Path(os.fspath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    write_file(target, "model", model.SerializeToString())
    return target


def in_ort_format(model: bytes) -> bytes:
    """Return a serialized ONNX model as the contents of a file in ORT format."""
    return _ortrain.convert_model(model, "ORT")
