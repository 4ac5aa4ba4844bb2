"""Model files as messages of ``onnx``: ONNX files, and files in ORT format."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx

from ortrain import _ortrain
from ortrain._files.reading import open_file
from ortrain._files.writing import write_file
from ortrain._support.values import StrPath
from ortrain.errors import InvalidModelError, OrtrainError

_IDENTIFIER = slice(4, 8)
_KERAS = "; load it with keras.models.load_model, and pass the model"
_TORCH = "; pass the torch.nn.Module that it belongs to"
_OTHER_FILES = {".keras": _KERAS, ".h5": _KERAS, ".pt": _TORCH, ".pth": _TORCH, ".safetensors": _TORCH}


def is_ort_format(path: StrPath) -> bool:
    """Return whether a file is in ORT format, by its identifier."""
    with open_file(path, "model") as file:
        return file.read(8)[_IDENTIFIER] == b"ORTM"


def load_model(path: StrPath, load_external_data: bool = True) -> onnx.ModelProto:
    """Return the model in a file of either format.

    Raises
    ------
    InvalidModelError
        When the file is not a model, or its weights in other files cannot be read.
    OSError
        When the file cannot be read.
    """
    if is_ort_format(path):
        return onnx.load_from_string(_ortrain.convert_model(Path(path).read_bytes(), "ONNX"))
    with naming_the_model(path):
        return onnx.load(path, load_external_data=load_external_data)


@contextmanager
def naming_the_model(path: StrPath) -> Iterator[None]:
    """Raise the errors of ``onnx`` about the model in a file as ``InvalidModelError`` with the path."""
    try:
        yield
    except (OSError, OrtrainError):
        raise
    except Exception as error:  # protobuf and onnx raise several classes without a common base
        name = os.fspath(path)
        remedy = next((text for ending, text in _OTHER_FILES.items() if name.endswith(ending)), "")
        raise InvalidModelError(f"'{name}' is not an ONNX model: {error}{remedy}") from error


def write_model(model: onnx.ModelProto, path: StrPath) -> Path:
    """Write an ONNX file, in a folder that is created if it does not exist; return its path."""
    target = Path(os.fspath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    write_file(target, "model", model.SerializeToString())
    return target


def in_ort_format(model: bytes) -> bytes:
    """Return a serialized ONNX model as the contents of a file in ORT format."""
    return _ortrain.convert_model(model, "ORT")
