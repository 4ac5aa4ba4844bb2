"""Prepares the folders in which the scripts find their files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from ortrain import artifacts

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/data/fixtures"
CASES = sorted(folder.name for folder in FIXTURES.iterdir() if folder.is_dir())
ARTIFACTS = ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint")
TYPES = {"float32": "float", "float64": "double", "int64": "int64", "int32": "int32", "bool": "bool"}


def expected(case: str) -> dict[str, Any]:
    """What was recorded of a run."""
    recorded: dict[str, Any] = json.loads((FIXTURES / case / "expected.json").read_text())
    return recorded


def write_tensor(path: Path, array: np.ndarray) -> None:
    """Write a tensor file: type and shape as a line of text, then the elements."""
    dims = "x".join(map(str, array.shape)) or "-"
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    path.write_bytes(f"{TYPES[array.dtype.name]} {dims}\n".encode() + little.tobytes())


def prepare_fixture(case: str, folder: Path) -> None:
    """The artifacts of a recorded run, and its batches as x0, y0, x1, y1 and so on."""
    folder.mkdir(parents=True)
    for name in ARTIFACTS:
        shutil.copy(FIXTURES / case / name, folder / name)
    with np.load(FIXTURES / case / "batches.npz") as batches:
        for name in batches.files:
            write_tensor(folder / name, batches[name])
        for name in ("x", "y"):
            write_tensor(folder / f"{name}_one", batches[f"{name}0"][:1])


def two_outputs() -> onnx.ModelProto:
    """A network from 64 numbers to ten classes with a dropout; `hidden` is a value inside."""
    rng = np.random.default_rng(5)
    weights = {
        "fc1.weight": rng.normal(0, 0.2, (32, 64)),
        "fc1.bias": rng.normal(0, 0.1, 32),
        "fc2.weight": rng.normal(0, 0.3, (10, 32)),
        "fc2.bias": np.zeros(10),
        "ratio": np.float32(0.3),
    }
    nodes = [
        helper.make_node("Gemm", ["input", "fc1.weight", "fc1.bias"], ["hidden"], "fc1", transB=1),
        helper.make_node("Relu", ["hidden"], ["active"], "relu"),
        helper.make_node("Dropout", ["active", "ratio", "training"], ["kept"], "drop"),
        helper.make_node("Gemm", ["kept", "fc2.weight", "fc2.bias"], ["logits"], "fc2", transB=1),
    ]
    initializers = [
        numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in weights.items()
    ]
    initializers.append(numpy_helper.from_array(np.array(True), "training"))
    graph = helper.make_graph(
        nodes,
        "two",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def prepare_values(folder: Path) -> None:
    """What values.txt needs: the artifacts of a network with two outputs, and a batch."""
    (folder / "two").mkdir(parents=True)
    artifacts.generate_artifacts(
        two_outputs(),
        requires_grad=["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder / "two",
        additional_output_names=["logits"],
    )
    rng = np.random.default_rng(6)
    images, labels = rng.normal(size=(16, 64)).astype(np.float32), rng.integers(0, 10, 16)
    write_tensor(folder / "x", images)
    write_tensor(folder / "y", labels)
    write_tensor(folder / "x_one", images[:1])
    write_tensor(folder / "y_one", labels[:1])


def prepare_errors(folder: Path) -> None:
    """What errors.txt needs: the smallest recorded run, and files that are damaged in various ways."""
    prepare_fixture("mlp_adamw", folder)
    shutil.copytree(FIXTURES / "encoder", folder / "encoder")
    (folder / "text").write_text("This is neither a model nor a checkpoint.\n")
    (folder / "empty").write_bytes(b"")
    checkpoint = (folder / "checkpoint").read_bytes()
    (folder / "checkpoint_truncated").write_bytes(checkpoint[: len(checkpoint) // 2])
    damaged = bytearray(checkpoint)
    damaged[0:4] = b"\xf0\xff\xff\x7f"  # where the content begins
    (folder / "checkpoint_damaged").write_bytes(damaged)
    model_bytes = (folder / "training_model.onnx").read_bytes()
    (folder / "model_truncated.onnx").write_bytes(model_bytes[: len(model_bytes) // 2])

    model = onnx.load(folder / "training_model.onnx")
    relu = next(node for node in model.graph.node if node.op_type == "Relu")
    relu.op_type, relu.domain = "NoSuchOperator", ""
    onnx.save(model, folder / "unknown_operator.onnx")

    model = onnx.load(folder / "training_model.onnx")
    first = next(node for node in model.graph.node if node.op_type == "Gemm")
    relu = next(node for node in model.graph.node if node.op_type == "Relu")
    first.input[0] = relu.output[0]
    onnx.save(model, folder / "cycle.onnx")

    labels = np.zeros(16, np.int64)
    labels[3] = 10
    write_tensor(folder / "y_wrong", labels)
