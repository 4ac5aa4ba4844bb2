"""Initializers of the graphs inside If and Loop are trained if they are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from differences import central_differences
from onnx import TensorProto, helper, numpy_helper
from ortrain import artifacts
from ortrain.api import CheckpointState
from training import Training

FLOAT = TensorProto.FLOAT
RNG = np.random.default_rng(3)
THEN, ELSE, STEP = (RNG.normal(size=(3,)).astype(np.float32) for _ in range(3))
X, TARGET = (RNG.normal(size=(4, 3)).astype(np.float32) for _ in range(2))


def graph_of(
    name: str,
    nodes: list[onnx.NodeProto],
    outputs: list[str],
    initializers: dict[str, np.ndarray],
    inputs: list[onnx.ValueInfoProto] | None = None,
) -> onnx.GraphProto:
    infos = [
        helper.make_tensor_value_info(o, TensorProto.BOOL if o.endswith("on") else FLOAT, None)
        for o in outputs
    ]
    tensors = [numpy_helper.from_array(value, key) for key, value in initializers.items()]
    return helper.make_graph(nodes, name, inputs or [], infos, tensors)


def model_of(inner: bool) -> onnx.ModelProto:
    """If: x * w or x + w, each with its own w; then a Loop of two steps y = tanh(y * step).

    Not inner: the same with all of them in the main graph.
    """
    then_w, else_w = ("w", "w") if inner else ("w_1", "w")  # the else branch comes first
    branches = {
        "then_branch": graph_of(
            "then", [helper.make_node("Mul", ["x", then_w], ["t"])], ["t"], {"w": THEN} if inner else {}
        ),
        "else_branch": graph_of(
            "else", [helper.make_node("Add", ["x", else_w], ["e"])], ["e"], {"w": ELSE} if inner else {}
        ),
    }
    body = graph_of(
        "body",
        [
            helper.make_node("Identity", ["going"], ["go_on"]),
            helper.make_node("Mul", ["y_in", "step"], ["y_scaled"]),
            helper.make_node("Tanh", ["y_scaled"], ["y_out"]),
        ],
        ["go_on", "y_out"],
        {"step": STEP} if inner else {},
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("y_in", FLOAT, None),
        ],
    )
    nodes = [
        helper.make_node("If", ["condition"], ["chosen"], name="choice", **branches),
        helper.make_node("Loop", ["twice", "yes", "chosen"], ["y"], name="steps", body=body),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", FLOAT, ["n", 3]),
            helper.make_tensor_value_info("condition", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", FLOAT, ["n", 3])],
        [
            numpy_helper.from_array(np.array(2), "twice"),
            numpy_helper.from_array(np.array(True), "yes"),
            *(
                numpy_helper.from_array(value, key)
                for key, value in ({} if inner else {"w": ELSE, "w_1": THEN, "step": STEP}).items()
            ),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def train(
    model: onnx.ModelProto, named: list[str], folder: Path
) -> tuple[dict[str, np.ndarray], list[float], np.ndarray]:
    artifacts.generate_artifacts(
        model,
        requires_grad=named,
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=folder,
    )
    session = Training(folder)
    session.optimizer.set_learning_rate(0.5)
    losses = []
    gradients: dict[str, np.ndarray] = {}
    for step in range(20):
        losses.append(sum(session.loss(X, np.array(choice), TARGET) for choice in (True, False)))
        if step == 0:
            gradients = session.gradients()
        session.optimizer.step()
        session.module.lazy_reset_grad()
    session.module.export_model_for_inferencing(str(folder / "exported.onnx"), ["y"])
    exported = onnxruntime.InferenceSession(str(folder / "exported.onnx"))
    return gradients, losses, exported.run(None, {"x": X, "condition": np.array(True)})[0]


def test_parameters_of_subgraphs_are_trained_as_those_of_the_model(tmp_path: Path) -> None:
    inner, outer = model_of(True), model_of(False)
    onnx.checker.check_model(inner)
    before = inner.SerializeToString()
    found = train(inner, ["w", "step"], tmp_path / "inner")
    expected = train(outer, ["w", "w_1", "step"], tmp_path / "outer")
    assert inner.SerializeToString() == before
    assert set(found[0]) == {"w", "w_1", "step"}
    for name, gradient in expected[0].items():
        assert np.abs(gradient).max() > 1e-3
        np.testing.assert_allclose(found[0][name], gradient, 1e-6, err_msg=name)
    np.testing.assert_allclose(found[1], expected[1], 1e-6)
    assert found[1][-1] < found[1][0]
    np.testing.assert_allclose(found[2], expected[2], 1e-5)


def test_gradients_are_those_of_the_formula(tmp_path: Path) -> None:
    gradients, losses, _ = train(model_of(True), ["w", "step"], tmp_path)

    def loss(w: np.ndarray, other: np.ndarray, step: np.ndarray) -> float:
        total = 0.0
        for y in (X * w, X + other):
            for _ in range(2):
                y = np.tanh(y * step)
            total += float(np.mean((y - TARGET) ** 2))
        return total

    values = [value.astype(np.float64) for value in (THEN, ELSE, STEP)]
    assert losses[0] == pytest.approx(loss(*values), rel=1e-5)
    for k, name in enumerate(("w_1", "w", "step")):
        numeric = central_differences(
            lambda moved, k=k: loss(*values[:k], moved, *values[k + 1 :]), values[k]
        )
        np.testing.assert_allclose(gradients[name], numeric, 1e-3, 1e-6, err_msg=name)


def test_a_name_that_is_taken_gets_a_number(tmp_path: Path) -> None:
    model = model_of(True)
    model.graph.node.append(helper.make_node("Identity", ["y"], ["step"]))
    model.graph.output[0].name = "step"
    body = model.graph.node[1].attribute[0].g
    body.initializer[0].name = "w"
    body.node[1].input[1] = "w"
    model.graph.node[0].attribute[0].g.initializer[0].name = "v"
    model.graph.node[0].attribute[0].g.node[0].input[1] = "v"
    artifacts.generate_artifacts(
        model,
        requires_grad=["v"],
        frozen_params=["w"],
        loss=artifacts.LossType.MSELoss,
        artifact_directory=tmp_path,
    )
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    kinds = {name: parameter.requires_grad for name, parameter in state.parameters}
    assert kinds == {"v": True, "w": False, "w_1": False}


@pytest.mark.output_of_unknown_rank  # the branches return values of ranks 2 and 1
def test_a_branch_may_give_its_initializer_as_it_is(tmp_path: Path) -> None:
    model = model_of(True)
    branch = model.graph.node[0].attribute[1].g
    del branch.node[:]
    branch.output[0].name = "w"
    gradients, losses, _ = train(model, ["w", "step"], tmp_path)
    assert set(gradients) == {"w", "w_1", "step"}
    assert losses[-1] < losses[0]


def test_a_name_that_is_nowhere_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no initializer named 'weights'"):
        train(model_of(True), ["weights"], tmp_path)
