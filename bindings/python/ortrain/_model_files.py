"""Model files as messages of ``onnx``: ONNX files, and files in ORT format."""

from __future__ import annotations

from pathlib import Path

import onnx

from ortrain import _ortrain
from ortrain._support import StrPath

_IDENTIFIER = slice(4, 8)


def is_ort_format(path: StrPath) -> bool:
    """Return whether a file is in ORT format, by its identifier."""
    with open(path, "rb") as file:
        return file.read(8)[_IDENTIFIER] == b"ORTM"


def load_model(path: StrPath, load_external_data: bool = True) -> onnx.ModelProto:
    """Return the model in a file of either format."""
    if is_ort_format(path):
        return onnx.load_from_string(_ortrain.convert_model(Path(path).read_bytes(), "ONNX"))
    return onnx.load(path, load_external_data=load_external_data)


def in_ort_format(model: bytes) -> bytes:
    """Return a serialized ONNX model as the contents of a file in ORT format."""
    return _ortrain.convert_model(model, "ORT")
