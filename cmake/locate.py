"""Print the path of a build dependency installed by pip: `locate.py onednn` or `locate.py onnx-proto`."""

import importlib.metadata
import importlib.util
import pathlib
import sys


def onednn() -> str:
    """Folder of the headers and folder of the library, separated by `;`."""
    headers = next(
        f.locate()
        for f in importlib.metadata.files("onednn-devel-cpu-gomp") or []
        if f.name == "dnnl.hpp" and f.parent.name == "include"
    )
    library = next(
        f.locate() for f in importlib.metadata.files("onednn-cpu-gomp") or [] if f.name == "libdnnl.so.3"
    )
    return f"{pathlib.Path(headers).resolve().parent};{pathlib.Path(library).resolve().parent}"


def onnx_proto() -> str:
    """Path of `onnx-ml.proto`, without importing onnx."""
    spec = importlib.util.find_spec("onnx")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "the Python package onnx is not installed; its onnx-ml.proto is needed to build"
        )
    return str(pathlib.Path(spec.origin).parent / "onnx-ml.proto")


print({"onednn": onednn, "onnx-proto": onnx_proto}[sys.argv[1]]())
