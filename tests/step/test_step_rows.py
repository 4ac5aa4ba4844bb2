"""Step models for a fixed number of rows: with one row, gradients of matrices are products of a column and a row."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from ortrain import artifacts, step
from ortrain.artifacts.step import generate_step
from ortrain.cli import main
from ortrain.onnxblock import optim
from training import Training

STEPS = 20
RNG = np.random.default_rng(11)
BATCHES = [
    (RNG.normal(size=(1, 6)).astype(np.float32), RNG.integers(0, 4, 1).astype(np.int64)) for _ in range(STEPS)
]


def network(rows: int | str = "n") -> onnx.ModelProto:
    rng = np.random.default_rng(2)
    weights = {
        "hidden": rng.normal(0, 0.4, (8, 6)),
        "bias": rng.normal(0, 0.4, 8),
        "out": rng.normal(0, 0.4, (8, 4)),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "hidden", "bias"], ["a"], transB=1),
            helper.make_node("Tanh", ["a"], ["t"]),
            helper.make_node("MatMul", ["t", "out"], ["scores"]),
        ],
        "network",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [rows, 6])],
        [helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, [rows, 4])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def generate(folder: pathlib.Path, optimizer: Any, rows: int | None = 1, **options: Any) -> pathlib.Path:
    path = folder / "step.onnx"
    generate_step(network(), artifacts.LossType.CrossEntropyLoss, optimizer, path, rows=rows, **options)
    return path


def passes(path: pathlib.Path, shape: list[int]) -> list[str]:
    """Return the operators of the nodes whose results have a shape."""
    graph = onnx.shape_inference.infer_shapes(onnx.load(path)).graph
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.value_info, *graph.output)
    }
    return [node.op_type for node in graph.node if shapes.get(node.output[0]) == shape]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("adamw", {"weight_decay": 0.1}),
        ("adagrad", {}),
        ("adam", {"weight_decay": 0.1}),
        ("sgd", {"momentum": 0.9}),
        ("adamw", {"clip_grad": optim.ClipGradNorm(0.3)}),
    ],
)
def test_twenty_steps_with_one_row_are_those_of_a_training_session(
    name: str, settings: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    path = generate(tmp_path, optim.BLOCKS[name](**settings))
    here, there = Training(tmp_path), step.Session(path, learning_rate=0.01)
    here.optimizer.set_learning_rate(0.01)
    expected = [here.step(*batch) for batch in BATCHES]
    np.testing.assert_allclose([float(there(*batch)) for batch in BATCHES], expected, 1e-5)
    for parameter, value in here.parameters().items():
        np.testing.assert_allclose(there.parameters[parameter], value, 1e-4, 1e-5, err_msg=parameter)


def test_adamw_takes_seven_passes_with_one_row_and_twelve_with_others(tmp_path: pathlib.Path) -> None:
    adamw = artifacts.OptimType.AdamW
    # The gradient, then both moments, the root and epsilon, the step, the quotient and the weight.
    others = ["Gemm", *["Mul", "Mul", "Add"] * 2, "Mul", "Sqrt", "Add", "Div", "Sub"]
    assert sorted(passes(generate(tmp_path, adamw, None), [8, 6])) == sorted(others)
    path = generate(tmp_path, adamw)
    assert passes(path, [8, 6]) == ["Gemm", "Mul", "Gemm", "Sqrt", "Add", "Div", "Sub"]
    model = onnx.load(path)
    (about,) = (entry.value for entry in model.metadata_props if entry.key == "ortrain.step")
    assert {"hidden.momentum0", "hidden.momentum1", "out.momentum1"} <= set(json.loads(about)["in_place"])


def test_accumulated_rows_and_gradients_alone_are_as_before(tmp_path: pathlib.Path) -> None:
    adamw = artifacts.OptimType.AdamW
    two = [np.concatenate(pair)[:, None] for pair in zip(*BATCHES[:2], strict=True)]
    found = {}
    for rows in (None, 1):
        session = step.Session(generate(tmp_path / str(rows), adamw, rows, accumulate=2))
        found[rows] = [float(session(*two)) for _ in range(5)]
        loss, gradients = step.Session(generate(tmp_path / "gradients", adamw, rows, kind="gradients"))(
            *BATCHES[0]
        )
        found[rows] += [float(loss), *(float(value.sum()) for value in gradients.values())]
    np.testing.assert_allclose(found[1], found[None], 1e-5)


def test_other_numbers_of_rows_are_rejected(tmp_path: pathlib.Path) -> None:
    sgd = optim.BLOCKS["sgd"]()
    with pytest.raises(ValueError, match="rows: expected 1 or more, found 0"):
        generate(tmp_path, sgd, 0)
    with pytest.raises(ValueError, match="rows: the input 'x' has 2 rows, expected 3"):
        generate_step(network(2), artifacts.LossType.CrossEntropyLoss, sgd, tmp_path / "step.onnx", rows=3)
    session = step.Session(generate(tmp_path, sgd, 2))
    with pytest.raises(Exception, match="Got: 1 Expected: 2"):
        session(*BATCHES[0])


def test_the_command_fixes_the_number_of_rows(tmp_path: pathlib.Path) -> None:
    onnx.save(network(), tmp_path / "model.onnx")
    options = ["--loss", "cross_entropy", "--step", "--rows", "1", "--out", str(tmp_path / "made")]
    assert not main(["artifacts", str(tmp_path / "model.onnx"), *options])
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in onnx.load(tmp_path / "made" / "step.onnx").graph.input
    }
    assert (shapes["x"], shapes["labels"]) == ([1, 6], [1])


FIRST_SESSION = """
import sys
import numpy as np
from ortrain import step
session = step.Session(sys.argv[1], learning_rate=0.0)
session.set_parameter("bias", np.full(8, 1e-40))
session(np.ones((1, 6), np.float32), np.zeros(1, np.int64))
assert not session.parameters["bias"].any(), session.parameters["bias"]
"""


def test_denormal_numbers_count_as_zero(tmp_path: pathlib.Path) -> None:
    path = generate(tmp_path, optim.BLOCKS["sgd"](), None)
    # In a new process: the first session of a process decides for all.
    subprocess.run([sys.executable, "-c", FIRST_SESSION, str(path)], check=True)
