"""Language models have the scores of the classes in the last dimension."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a model from ``x``, float32 ``[batch, 4, 6]``, to ``scores``, ``[batch, 4, 3]``, and its data."""
    rng = np.random.default_rng(1)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["scores"])],
        "language_model",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4, 6])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 4, 3])],
        [numpy_helper.from_array(rng.normal(size=(6, 3)).astype(np.float32), "w")],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "model.onnx",
    )
    x = rng.normal(size=(200, 4, 6)).astype(np.float32)
    np.savez(tmp_path / "train.npz", x=x, y=x[..., :3].argmax(-1))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_labels_of_tokens_lead_to_the_option(folder, run):
    run("artifacts", "model.onnx", "--loss", "cross_entropy")
    found = run("train", "artifacts", "--data", "train.npz", "--epochs", "1", status=1)
    assert "`ortrain artifacts --classes-last`" in found.err


@pytest.mark.parametrize("weighted", [(), ("--sample-weight",)], ids=["", "with sample weights"])
def test_classes_in_the_last_dimension_are_learned(folder, run, weighted):
    run("artifacts", "model.onnx", "--loss", "cross_entropy", "--classes-last", *weighted)
    if weighted:
        data = dict(np.load("train.npz"))
        np.savez("train.npz", **data, weight=np.ones(200, np.float32))
    of_rows = ("--sample-weight", "weight") if weighted else ()
    run(
        "train",
        "artifacts",
        "--data",
        "train.npz",
        "--epochs",
        "12",
        "--lr",
        "0.1",
        "--metric",
        "accuracy",
        *of_rows,
    )
    found = run("evaluate", "artifacts", "--data", "train.npz", "--metric", "accuracy", "--json").json
    assert found["accuracy"] > 0.95


def test_the_option_is_for_cross_entropy(folder, run):
    found = run("artifacts", "model.onnx", "--loss", "mse", "--classes-last", status=2)
    assert "--classes-last is for --loss cross_entropy, found --loss mse" in found.err
