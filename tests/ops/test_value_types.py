"""Types are inferred without any input, even if shapes are unknown, and inputs that do not match are rejected."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from helpers import Array
from models import model_of
from runner import gradient_model, run_model


def unknown_rank(text: str, *names: str) -> bytes:
    """The model of a text, with only the element type declared for some inputs."""
    model = onnx.load_from_string(model_of(text))
    for value in model.graph.input:
        if value.name in names:
            value.type.tensor_type.ClearField("shape")
    return model.SerializeToString()


HEAD = '<ir_version: 9, opset_import: ["" : 18]>'


@pytest.mark.parametrize(
    ("nodes", "factor"),
    [
        ("i = ArgMax <axis = 1> (x) c = Cast <to = 1> (i)", lambda x: x.argmax(1).sum()),
        ("i = Shape (x) c = Cast <to = 1> (i)", lambda x: sum(x.shape)),
        ("b = Greater (x, half) c = Cast <to = 1> (b)", lambda x: (x > 0.5).sum()),
        ("b = IsNaN (x) n = Not (b) c = Cast <to = 1> (n)", lambda x: x.size),
        ("v, i = TopK (x, one) c = CastLike (i, x)", lambda x: x.argmax(1).sum()),
        ("u, s, z = DynamicQuantizeLinear (x) c = Cast <to = 1> (u)", lambda x: np.rint(x / (4 / 255)).sum()),
        ("q = QuantizeLinear (x, half) c = Cast <to = 1> (q)", lambda x: np.rint(x / 0.5).sum()),
    ],
)
def test_a_gradient_beside_values_of_other_types(nodes: str, factor: Callable[[Array], float]) -> None:
    """The loss is k sum x^2, and no gradient goes through k, which comes from integers or bools."""
    model = unknown_rank(
        f"""{HEAD} g (float[2, 3] x) => (float loss)
        <float half = {{0.5}}, int64[1] one = {{1}}>
        {{ {nodes} k = ReduceSum <keepdims = 0> (c) y = Mul (x, x) s0 = ReduceSum <keepdims = 0> (y) loss = Mul (s0, k) }}""",
        "x",
    )
    x = np.array([[1, 2, 0.25], [0.75, 3, 4]], np.float32)
    found = run_model(gradient_model(model, ["x"], "loss"), {"x": x})["x_grad"]
    np.testing.assert_allclose(found, 2 * x * factor(x), rtol=1e-6)


def test_a_node_whose_shapes_do_not_fit_is_rejected_by_name() -> None:
    model = model_of(
        f"""{HEAD} g (float[2, 3] x, float[4, 5] w) => (float loss)
        {{ r = Relu (x) y = MatMul (r, w) loss = ReduceSum <keepdims = 0> (y) }}"""
    )
    with pytest.raises(RuntimeError, match=r"BuildGradientModel: .*\n.*MatMul.*\[2, 3\].*\[4, 5\]"):
        gradient_model(model, ["x"], "loss")


def test_a_branch_that_never_runs_may_have_shapes_that_do_not_fit() -> None:
    model = model_of(
        f"""{HEAD} g (bool yes, float[2, 3] x) => (float loss)
        <float[4, 5] w = {{1,1,1,1,1, 1,1,1,1,1, 1,1,1,1,1, 1,1,1,1,1}}>
        {{ y = If (yes) <then_branch = t () => (float[a, b] o) {{ o = Mul (x, x) }},
                        else_branch = e () => (float[c, d] p) {{ p = MatMul (x, w) }}>
           loss = ReduceSum <keepdims = 0> (y) }}"""
    )
    x = np.ones((2, 3), np.float32)
    found = run_model(gradient_model(model, ["x"], "loss"), {"yes": np.array(True), "x": x})["x_grad"]
    np.testing.assert_array_equal(found, 2 * x)


def test_a_wrong_statement_about_a_shape_that_nothing_else_tells_is_no_reason_to_reject() -> None:
    """Exporters may leave shapes of other inputs in the model; those of the run are used."""
    model = onnx.load_from_string(
        model_of(
            f"""{HEAD} g (float[6] x, int64[2] wanted, float[3] w) => (float loss)
            {{ y = Reshape (x, wanted) z = Mul (y, w) loss = ReduceSum <keepdims = 0> (z) }}"""
        )
    )
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [5, 5]))
    feeds = {"x": np.ones(6, np.float32), "wanted": np.array([2, 3]), "w": np.arange(3, dtype=np.float32)}
    found = run_model(gradient_model(model.SerializeToString(), ["x"], "loss"), feeds)["x_grad"]
    np.testing.assert_array_equal(found, np.tile(feeds["w"], 2))
