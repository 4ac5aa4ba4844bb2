"""Print the path of a build dependency installed by pip: `locate.py onnx-proto`."""

import importlib.util
import pathlib
import sys


def onnx_proto() -> str:
    """Path of `onnx-ml.proto`, without importing onnx."""
    spec = importlib.util.find_spec("onnx")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "the Python package onnx is not installed; its onnx-ml.proto is needed to build"
        )
    return str(pathlib.Path(spec.origin).parent / "onnx-ml.proto")


print({"onnx-proto": onnx_proto}[sys.argv[1]]())
