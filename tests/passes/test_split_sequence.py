"""Pieces of a tensor that are read at constant positions come from a Split, not from a sequence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import ortrain
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import artifacts
from ortrain.api import CheckpointState, Module

X = np.random.default_rng(0).normal(size=(4, 7, 3)).astype(np.float32)


def model(
    split: Any,
    positions: list[int],
    *,
    axis: int = 1,
    opset: int = 18,
    columns: int | str = 7,
    extra: list[onnx.NodeProto] | None = None,
) -> onnx.ModelProto:
    """Return a model that reads pieces of x, each multiplied by w, which is a number."""
    nodes = [helper.make_node("SplitToSequence", ["x", "split"], ["pieces"], axis=axis)]
    numbers = {"split": np.asarray(split, np.int64), "w": np.array([1.5], np.float32)}
    outputs = []
    for k, position in enumerate(positions):
        numbers[f"at_{k}"] = np.asarray(position, np.int64)
        nodes.append(helper.make_node("SequenceAt", ["pieces", f"at_{k}"], [f"piece_{k}"]))
        nodes.append(helper.make_node("Mul", [f"piece_{k}", "w"], [f"y_{k}"]))
        outputs.append(helper.make_tensor_value_info(f"y_{k}", TensorProto.FLOAT, None))
    for node in extra or []:
        nodes.append(node)
        outputs.append(helper.make_tensor_value_info(node.output[0], TensorProto.INT64, []))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", columns, 3])],
        outputs,
        [numpy_helper.from_array(value, name) for name, value in numbers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(made: onnx.ModelProto, folder: Path, disabled: bool) -> tuple[list[np.ndarray], list[str]]:
    options = ortrain.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.add_session_config_entry("ortrain.disable_pass.split_sequence", str(int(disabled)))
    results = ortrain.InferenceSession(made.SerializeToString(), options).run(None, {"x": X})
    return results, [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]


def check(made: onnx.ModelProto, folder: Path, *, splits: bool) -> None:
    found, ran = run(made, folder, disabled=False)
    expected, separate = run(made, folder, disabled=True)
    assert len(found) == len(expected) > 0
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
    assert "SplitToSequence" in separate
    assert ("SplitToSequence" in ran) != splits
    assert ("Split" in ran) == splits


@pytest.mark.parametrize(
    ("split", "positions", "options"),
    [
        (3, [0, 1, 2], {}),
        (7, [0], {}),
        (1, [6, 0, -1, -7], {}),
        ([2, 4, 1], [0, 2], {}),
        ([2, 1], [1, 1, 0], {"axis": -1}),
        (4, [1, 0], {"opset": 11}),
        ([3, 4], [0, 1], {"opset": 12}),
    ],
    ids=str,
)
def test_pieces_come_from_a_split(split: Any, positions: list[int], options: Any, tmp_path: Path) -> None:
    check(model(split, positions, **options), tmp_path, splits=True)


@pytest.mark.parametrize(
    ("split", "options"),
    [
        (3, {"columns": "m"}),
        (2, {"axis": 0}),
        ([3, 0, 4], {}),
        (3, {"extra": [helper.make_node("SequenceLength", ["pieces"], ["count"])]}),
    ],
    ids=["unknown size", "unknown batch", "an empty piece", "the sequence is read"],
)
def test_other_sequences_stay(split: Any, options: Any, tmp_path: Path) -> None:
    check(model(split, [0, 1], **options), tmp_path, splits=False)


def test_a_position_outside_is_an_error_as_before() -> None:
    session = ortrain.InferenceSession(model(3, [3]).SerializeToString())
    with pytest.raises(Exception, match="3"):
        session.run(None, {"x": X})


def test_training_models_have_no_sequences(tmp_path: Path) -> None:
    made = model(3, [0, 1])
    made.graph.node.append(helper.make_node("Add", ["y_0", "y_1"], ["y"]))
    del made.graph.output[:]
    made.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3, 3]))
    artifacts.generate_artifacts(
        made, requires_grad=["w"], loss=artifacts.LossType.MSELoss, artifact_directory=tmp_path
    )
    training = onnx.load(tmp_path / "training_model.onnx")
    assert not [node.op_type for node in training.graph.node if "Sequence" in node.op_type]
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    target = np.zeros((4, 3, 3), np.float32)
    loss = float(np.asarray(module(X, target)))
    np.testing.assert_allclose(loss, np.mean((1.5 * (X[:, :3] + X[:, 3:6])) ** 2), rtol=1e-6)
