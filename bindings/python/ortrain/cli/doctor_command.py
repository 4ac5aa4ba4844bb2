"""``ortrain doctor``."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from typing import Any

import click
import numpy as np

from ortrain import _ortrain
from ortrain._files.system import system
from ortrain._ortrain import OrtValue, __version__
from ortrain.cli import app
from ortrain.library import get_build_info

_PACKAGES = [
    "numpy",
    "onnx",
    "onnxruntime",
    "scikit-learn",
    "matplotlib",
    "tensorboardX",
    "pyarrow",
    "safetensors",
]
_SETS = ["sse4_2", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "asimd", "sve"]


@app.command("doctor", "ortrain doctor")
@app.as_json
def command(json_output: bool) -> int:
    """Describe this machine and what is installed, and test the library.

    The test computes the gradient of a small matrix product and compares it with NumPy. The test needs onnx. The exit
    status is 3 if it fails.
    """
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    began = time.perf_counter()
    test = _self_test()
    found: dict[str, Any] = {
        "ortrain": __version__,
        "build": get_build_info(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "instruction_sets": _instruction_sets(),
        "packages": versions,
        "self_test": test,
        "seconds": time.perf_counter() - began,
    }
    if json_output:
        app.print_json(found)
    else:
        found["seconds"] = f"{found['seconds']:.2f}"
        rows = [(name.replace("_", " "), str(value)) for name, value in found.items() if name != "packages"]
        rows[5:6] = [("instruction sets", " ".join(found["instruction_sets"]) or "unknown")]
        click.echo(app.table([*rows, *versions.items()]))
    return app.NO if test.startswith("FAILED") else app.OK


def _instruction_sets() -> list[str]:
    found = system.processor_features()
    return [name for name in _SETS if name in found]


def _self_test() -> str:
    """Compare the gradient of sum((x w)^2) by w with NumPy's 2 x^T x w."""
    try:
        import onnx
        from onnx import TensorProto, helper
    except ImportError:
        return "not run: it needs onnx"
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 48), dtype=np.float32)
    w = rng.standard_normal((48, 32), dtype=np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Mul", ["product", "product"], ["square"]),
        helper.make_node("ReduceSum", ["square"], ["loss"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "self_test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 48])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [onnx.numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    training = _ortrain.build_training_model(model.SerializeToString(), ["w"], [], [], "loss", [], [])
    state = _ortrain.create_checkpoint(["w"], [OrtValue.ortvalue_from_numpy(w)], [True], False)
    session = _ortrain.create_training_session_from_buffer(None, state, training)
    _ortrain.train_step(session, None, [OrtValue.ortvalue_from_numpy(x)], 1)
    found = _ortrain.checkpoint_get_parameter_gradient(state, "w").numpy()
    expected = 2 * x.T.astype(np.float64) @ (x.astype(np.float64) @ w)
    error = float(np.abs(found - expected).max() / np.abs(expected).max())
    return (
        f"passed, largest relative error {error:.1e}"
        if error < 1e-4
        else f"FAILED, relative error {error:.1e}"
    )
