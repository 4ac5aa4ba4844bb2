"""Prepares the folders with the files of the scripts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from ortrain import artifacts
from ortrain.api import CheckpointState

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/data/fixtures"
CASES = sorted(folder.name for folder in FIXTURES.iterdir() if folder.is_dir())
ARTIFACTS = ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint")
TYPES = {
    "float32": "float",
    "float16": "float16",
    "float64": "double",
    "int64": "int64",
    "int32": "int32",
    "bool": "bool",
}


def expected(case: str) -> dict[str, Any]:
    """The recorded values of a run."""
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


def prepare_groups(folder: Path) -> None:
    """What groups.txt needs: a recorded run whose optimizer has a second group and clips gradients."""
    prepare_fixture("mlp_adamw", folder)
    path = folder / "optimizer_model.onnx"
    model = onnx.load(path)
    node = model.graph.node[0]
    other = onnx.NodeProto()
    other.CopyFrom(node)
    other.name, other.output[0] = "second", "second_updated"
    kept = [a for a in other.attribute if a.name != "weight_decay"]
    del other.attribute[:]
    parameters = CheckpointState.load_checkpoint(folder / "checkpoint").parameters
    biases = [name for name, p in parameters if p.requires_grad and p.data.ndim < 2]
    own = {"group": "no_decay", "parameters": biases, "weight_decay": 0.0, "learning_rate_factor": 0.5}
    other.attribute.extend([*kept, *(helper.make_attribute(k, v) for k, v in own.items())])
    model.graph.node.append(other)
    onnx.save(model, path)


def two_outputs() -> onnx.ModelProto:
    """A network from 64 values to ten classes with dropout; `hidden` is an intermediate value."""
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


def half(second: type[np.floating[Any]]) -> onnx.ModelProto:
    """A network of two layers from eight float16 values to four classes; the second layer computes in its own type."""
    rng = np.random.default_rng(8)
    weights = {
        "w1": rng.normal(0, 0.3, (8, 16)).astype(np.float16),
        "b1": rng.normal(0, 0.1, 16).astype(np.float16),
        "w2": rng.normal(0, 0.3, (16, 4)).astype(second),
        "b2": rng.normal(0, 0.1, 4).astype(second),
    }
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(second))
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["first"]),
        helper.make_node("Relu", ["first"], ["active"]),
        helper.make_node("Cast", ["active"], ["cast"], to=kind),
        helper.make_node("Gemm", ["cast", "w2", "b2"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "half",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["batch", 8])],
        [helper.make_tensor_value_info("logits", kind, ["batch", 4])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def prepare_half(folder: Path) -> None:
    """What half.txt needs: float16 parameters, also with frozen ones in float32, and a batch."""
    for name, second, frozen in (("half", np.float16, ["b1"]), ("mixed", np.float32, ["w2", "b2"])):
        (folder / name).mkdir(parents=True)
        artifacts.generate_artifacts(
            half(second),
            requires_grad=[weight for weight in ("w1", "b1", "w2", "b2") if weight not in frozen],
            frozen_params=frozen,
            loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=artifacts.OptimType.AdamW,
            artifact_directory=folder / name,
        )
    rng = np.random.default_rng(9)
    write_tensor(folder / "x", rng.normal(size=(16, 8)).astype(np.float16))
    write_tensor(folder / "y", rng.integers(0, 4, 16))


def several_types() -> onnx.ModelProto:
    """A model whose inputs and outputs are of several types, of any batch."""
    nodes = [
        helper.make_node("Cast", ["n"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["real", "axis"], ["column"]),
        helper.make_node("Mul", ["a", "column"], ["scaled"]),
        helper.make_node("ReduceSum", ["scaled"], ["total"], keepdims=0),
        helper.make_node("Add", ["n", "n"], ["twice"]),
        helper.make_node("Greater", ["a", "zero"], ["positive"]),
        helper.make_node("Cast", ["a"], ["wide"], to=TensorProto.DOUBLE),
    ]
    constants = [
        numpy_helper.from_array(np.array([1]), "axis"),
        numpy_helper.from_array(np.float32(0), "zero"),
    ]
    shape = ["batch", 4]
    graph = helper.make_graph(
        nodes,
        "several",
        [
            helper.make_tensor_value_info("a", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("n", TensorProto.INT64, ["batch"]),
        ],
        [
            helper.make_tensor_value_info("scaled", TensorProto.FLOAT, shape),
            helper.make_tensor_value_info("total", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("twice", TensorProto.INT64, ["batch"]),
            helper.make_tensor_value_info("positive", TensorProto.BOOL, shape),
            helper.make_tensor_value_info("wide", TensorProto.DOUBLE, shape),
        ],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def with_gradients() -> onnx.ModelProto:
    """The sum of cubes, its gradient, and the sum of the gradient of that."""
    preview = "ai.onnx.preview.training"
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"]),
        helper.make_node("Mul", ["square", "x"], ["cube"]),
        helper.make_node("ReduceSum", ["cube"], ["y"], keepdims=0),
        helper.make_node("Gradient", ["x"], ["slope"], domain=preview, xs=["x"], y="y"),
        helper.make_node("Gradient", ["x"], ["curvature"], domain=preview, xs=["x"], y="slope"),
        helper.make_node("ReduceSum", ["curvature"], ["bend"], keepdims=0),
    ]
    names = {"y": [], "slope": [1, 4], "bend": []}
    graph = helper.make_graph(
        nodes,
        "gradient",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in names.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(preview, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def prepare_inference(folder: Path) -> None:
    """What inference.txt needs: models, their inputs, and files that are not models."""
    folder.mkdir(parents=True)
    onnx.save(several_types(), folder / "several.onnx")
    onnx.save(two_outputs(), folder / "two.onnx")
    onnx.save(with_gradients(), folder / "gradient.onnx")
    unknown = two_outputs()
    unknown.graph.node[1].op_type = "NoSuchOperator"
    onnx.save(unknown, folder / "unknown.onnx")
    (folder / "text").write_text("This is no model.\n")
    rng = np.random.default_rng(7)
    a, n = rng.normal(size=(3, 4)).astype(np.float32), np.array([2, -1, 3])
    write_tensor(folder / "a", a)
    write_tensor(folder / "n", n)
    write_tensor(folder / "a_one", a[:1])
    write_tensor(folder / "n_one", n[:1])
    write_tensor(folder / "images", rng.normal(size=(16, 64)).astype(np.float32))


def prepare_errors(folder: Path) -> None:
    """What errors.txt needs: the smallest recorded run, and files that are damaged in various ways."""
    prepare_fixture("mlp_adamw", folder)
    shutil.copytree(FIXTURES / "encoder", folder / "encoder")
    (folder / "text").write_text("This is neither a model nor a checkpoint.\n")
    (folder / "empty").write_bytes(b"")
    checkpoint = (folder / "checkpoint").read_bytes()
    (folder / "checkpoint_truncated").write_bytes(checkpoint[: len(checkpoint) // 2])
    damaged = bytearray(checkpoint)
    damaged[0:4] = b"\xf0\xff\xff\x7f"  # the start of the contents
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
