"""Write the data of `ortrain demo` into the Python package: the digits, and the artifacts of a small network.

The package contains these files so that the demo needs neither scikit-learn nor onnx. Run the script after changing the network:
``python scripts/make_demo_data.py``.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from ortrain import artifacts
from sklearn.datasets import load_digits

FOLDER = Path(__file__).resolve().parents[1] / "bindings/python/ortrain/demo_data"


def network(seed: int = 0) -> onnx.ModelProto:
    """Return a small convolutional network with random weights.

    It maps ``image``, float32 ``[batch, 1, 8, 8]``, to ``scores``, float32 ``[batch, 10]``.
    """
    rng = np.random.default_rng(seed)
    shapes = {"conv1.weight": (16, 1, 3, 3), "conv2.weight": (32, 16, 3, 3), "classify.weight": (10, 512)}
    weights = {}
    for name, shape in shapes.items():
        fan_in = int(np.prod(shape[1:]))
        weights[name] = rng.normal(0, np.sqrt(2 / fan_in), shape)
        weights[name.replace("weight", "bias")] = np.zeros(shape[0])
    conv = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["image", "conv1.weight", "conv1.bias"], ["c1"], name="conv1", **conv),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu1"),
        helper.make_node("Conv", ["r1", "conv2.weight", "conv2.bias"], ["c2"], name="conv2", **conv),
        helper.make_node("Relu", ["c2"], ["r2"], name="relu2"),
        helper.make_node("MaxPool", ["r2"], ["pooled"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pooled"], ["flat"], name="flatten"),
        helper.make_node(
            "Gemm", ["flat", "classify.weight", "classify.bias"], ["scores"], name="classify", transB=1
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def write(folder: Path) -> None:
    """Write the digits and the artifacts."""
    pixels, labels = load_digits(return_X_y=True)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        folder / "digits.npz",
        pixels=pixels.astype(np.uint8).reshape(-1, 8, 8),
        labels=labels.astype(np.uint8),
    )
    shutil.rmtree(folder / "artifacts", ignore_errors=True)
    artifacts.generate_artifacts(
        network(),
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder / "artifacts",
        additional_output_names=["scores"],
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
