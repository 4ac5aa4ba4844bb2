"""Mixed precision and conversions in the older Python API."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import ortrain
import pytest
from legacy_models import (
    WEIGHTS,
    Reference,
    adam,
    batch,
    clipped,
    feed,
    gradients,
    lamb,
    mlp,
    norm,
    parameters,
    serialized,
    sgd,
    tensor,
    weights,
)
from onnx import TensorProto, helper, numpy_helper

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples/older_api/train.py"


def bf16() -> ortrain.SessionOptions:
    options = ortrain.SessionOptions()
    options.add_session_config_entry("ortrain.mixed_precision", "bf16")
    return options


def scale(value: float) -> dict[str, np.ndarray]:
    return {"loss_scale": np.array([value], np.float32)}


def mixed(
    optimizer: str = "AdamOptimizer", options: ortrain.SessionOptions | None = None, **members: Any
) -> ortrain.TrainingSession:
    return ortrain.TrainingSession(mlp(), parameters(optimizer, use_mixed_precision=True, **members), options)


@pytest.mark.parametrize(
    ("optimizer", "step"), [("AdamOptimizer", adam()), ("LambOptimizer", lamb()), ("SGDOptimizer", sgd)]
)
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_training_follows_that_in_double_precision(optimizer: str, step: Any, half: str) -> None:
    s = mixed(optimizer, bf16() if half == "bfloat16" else None, floats={"max_norm_clip": 0.5})
    ref = Reference(weights(), step)
    tolerance = 3e-3 if half == "float16" else 3e-2
    for k in range(8):
        loss, g = gradients(ref.w, batch(k))
        found = s.run(
            ["loss", "global_gradient_norm", "all_gradients_finite"], feed(batch(k), 0.005, **scale(1024))
        )
        assert found[0] == pytest.approx(loss, rel=tolerance)
        assert found[1] / 1024 == pytest.approx(norm(g), rel=10 * tolerance)
        assert found[2]
        ref.update(clipped(g, 0.5), float(np.float32(0.005)))
    for w in WEIGHTS:
        assert np.abs(s.get_state()[w] - ref.w[w]).max() < 0.02


def test_the_loss_scale_changes_rounding_alone() -> None:
    one, other = mixed(), mixed()
    for k in range(4):
        one.run(["loss"], feed(batch(k), **scale(1)))
        other.run(["loss"], feed(batch(k), **scale(4096)))
    for w in WEIGHTS:
        np.testing.assert_allclose(one.get_state()[w], other.get_state()[w], atol=2e-3)


@pytest.mark.parametrize("optimizer", ["AdamOptimizer", "LambOptimizer", "SGDOptimizer"])
def test_a_gradient_that_is_not_finite_changes_nothing(optimizer: str) -> None:
    s = mixed(optimizer)
    s.run(["loss"], feed(batch(), **scale(8)))
    before = s.get_state()
    loss, finite = s.run(["loss", "all_gradients_finite"], feed(batch(), **scale(np.inf)))
    assert np.isfinite(loss)
    assert not finite
    for name, value in s.get_state().items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    assert s.run(["all_gradients_finite"], feed(batch(), **scale(8)))[0]
    assert not np.array_equal(before["W1"], s.get_state()["W1"])


@pytest.mark.parametrize("optimizer", ["AdamOptimizer", "LambOptimizer", "SGDOptimizer"])
def test_copies_of_16_bits_follow_the_weights(optimizer: str) -> None:
    s = mixed(optimizer)
    for k in range(3):
        s.run(["loss"], feed(batch(k), **scale(64)))
        state = s.get_model_state(include_mixed_precision_weights=True)
        assert set(state["mixed_precision"]) == {"W1", "b1", "W2", "b2"}
        for w, half in state["mixed_precision"].items():
            assert half.dtype == np.float16
            np.testing.assert_array_equal(half, state["full_precision"][w].astype(np.float16))
    assert {f"{w}_fp16" for w in WEIGHTS} <= set(s.get_state())


def test_accumulation_in_mixed_precision() -> None:
    s = mixed(gradient_accumulation_steps=2, enable_grad_norm_clip=False)
    from legacy_models import path_only

    ref = Reference(weights(), adam())
    parts = [gradients(ref.w, batch(k))[1] for k in range(2)]
    s.run(["Group_Accumulated_Gradients"], feed(batch(0), **scale(512)), path_only())
    s.run(["loss"], feed(batch(1), 0.01, **scale(512)))
    total = {w: (parts[0][w] + parts[1][w]) / 2 for w in WEIGHTS}
    for w in WEIGHTS:
        np.testing.assert_allclose(s.get_state()[f"Moment_1_{w}"], 0.1 * total[w], atol=2e-4)


def test_moments_of_16_bits() -> None:
    s = ortrain.TrainingSession(mlp(), parameters(use_fp16_moments=True, enable_grad_norm_clip=False))
    ref = Reference(weights(), adam())
    for k in range(3):
        g = gradients(ref.w, batch(k))[1]
        s.run(["loss"], feed(batch(k), 0.01))
        ref.update(g, float(np.float32(0.01)))
    state = s.get_state()
    for w in WEIGHTS:
        assert state[f"Moment_2_{w}"].dtype == np.float16
        np.testing.assert_allclose(state[f"Moment_1_{w}"], ref.m[w], rtol=5e-3, atol=1e-4)


def test_half_precision_is_for_products_and_the_loss_stays_in_float32(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "training.onnx"
    s = mixed(model_with_training_graph_path=str(path))
    model = onnx.shape_inference.infer_shapes(onnx.load(str(path)))
    types = {i.name: i.type.tensor_type.elem_type for i in [*model.graph.value_info, *model.graph.output]}
    assert types["h"] == types["pred"] == TensorProto.FLOAT16
    assert types["loss"] == TensorProto.FLOAT
    assert [o.type for o in s.get_outputs()][:2] == ["tensor(float)", "tensor(float16)"]
    assert s.run(["pred"], feed(batch(), **scale(1)))[0].dtype == np.float16


def test_a_weight_that_is_read_in_both_precisions_gets_both_gradients() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("ReduceMean", ["p"], ["mean"], keepdims=0),
        helper.make_node("ReduceSumSquare", ["w"], ["squares"], keepdims=0),
        helper.make_node("Add", ["mean", "squares"], ["loss"]),
    ]
    w = weights()["W1"]
    model = serialized(nodes, [tensor("x", [3, 4])], [tensor("loss", [])], {"w": w})
    p = parameters(names=("w",), use_mixed_precision=True, enable_grad_norm_clip=False)
    s = ortrain.TrainingSession(model, p)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    s.run(["loss"], {"x": x, "Learning_Rate": np.array([0.0], np.float32), **scale(16)})
    expected = 2 * w + (x.sum(0) / (3 * 16))[:, None]
    np.testing.assert_allclose(s.get_state()["Moment_1_w"], 0.1 * expected, atol=1e-4)


def casts(level: int, allow: tuple[str, ...] = ()) -> dict[str, int]:
    """Return the element types of what nodes produce, in a model that converts around every node."""
    half, full = TensorProto.FLOAT16, TensorProto.FLOAT
    nodes = [
        helper.make_node("Cast", ["x"], ["x16"], to=half),
        helper.make_node("Cast", ["w"], ["w16"], to=half),
        helper.make_node("MatMul", ["x16", "w16"], ["p16"]),
        helper.make_node("Cast", ["p16"], ["p"], to=full),
        helper.make_node("Transpose", ["p"], ["t"], name="t"),
        helper.make_node("Relu", ["t"], ["r"], name="r"),
        helper.make_node("Softsign", ["r"], ["e"], name="e"),
        helper.make_node("ReduceMean", ["e"], ["loss"], keepdims=0),
    ]
    model = serialized(nodes, [tensor("x", [3, 4])], [tensor("loss", [])], {"w": weights()["W1"]})
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/training.onnx"
        p = parameters(names=("w",), propagate_cast_ops_level=level, propagate_cast_ops_allow=list(allow))
        p.model_after_graph_transforms_path = path
        s = ortrain.TrainingSession(model, p)
        written = onnx.shape_inference.infer_shapes(onnx.load(path))
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    found = s.run(["loss"], {"x": x, "Learning_Rate": np.array([0.01], np.float32)})[0]
    expected = np.maximum(x @ weights()["W1"], 0)
    assert found == pytest.approx((expected / (1 + np.abs(expected))).mean(), rel=3e-3)
    onnx.checker.check_model(written)
    types = {i.name: i.type.tensor_type.elem_type for i in [*written.graph.value_info, *written.graph.output]}
    return {node.name: types[node.output[0]] for node in written.graph.node if node.name in ("t", "r", "e")}


@pytest.mark.parametrize(
    ("level", "allow", "half"),
    [
        (-1, (), ""),
        (-1, ("Transpose",), ""),
        (0, (), ""),
        (0, ("Transpose",), "t"),
        (1, (), "t"),
        (1, ("Relu",), "tr"),
        (2, (), "tre"),
        (99, (), "tre"),
    ],
)
def test_levels_of_propagating_casts(level: int, allow: tuple[str, ...], half: str) -> None:
    found = casts(level, allow)
    assert {name for name, kind in found.items() if kind == TensorProto.FLOAT16} == set(half)


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("arguments", "precision"),
    [([], "float32"), (["--precision", "float16"], "float16"), (["--precision", "bfloat16"], "bfloat16")],
)
def test_the_digits_are_learned(arguments: list[str], precision: str, tmp_path: pathlib.Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), *arguments],
        capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert precision in done.stdout


def test_immutable_weights() -> None:
    half = numpy_helper.from_array(np.array(0.5, np.float32), "half")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Mul", ["p", "half"], ["q"]),
        helper.make_node("ReduceMean", ["q"], ["loss"], keepdims=0),
    ]
    initializers = {"w": weights()["W1"], "half": numpy_helper.to_array(half)}
    model = serialized(nodes, [tensor("x", [3, 4])], [tensor("loss", [])], initializers)
    found = []
    for immutable in (
        {},
        {"Mul": [(1, 0.5)]},
        {"Mul": [(1, 0.25)]},
        {"Add": [(1, 0.5)]},
        {"Mul": [(7, 0.5)]},
    ):
        p = parameters(names=("w", "half"))
        p.weights_to_train, p.immutable_weights = set(), immutable
        found.append(set(ortrain.TrainingSession(model, p).get_model_state()["full_precision"]))
    both = {"w", "half"}
    assert found == [both, {"w"}, both, both, both]
