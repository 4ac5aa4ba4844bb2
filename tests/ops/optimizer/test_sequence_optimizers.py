"""Optimizers over sequences of parameters, against what onnxruntime-training 1.19.2 computed
(data/sequence_optimizers), against formulas in double, and against the optimizer of a training session."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import onnx
import ortrain
import pytest
from helpers import MICROSOFT, Op, check_forward, check_rejected, uniform
from numpy.typing import NDArray
from onnx import TensorProto, helper
from ortrain.errors import OrtrainError

Array = NDArray[Any]

_FOLDER = pathlib.Path(__file__).parents[2] / "data" / "sequence_optimizers"
_CASES = json.loads((_FOLDER / "cases.json").read_text())


def recorded() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Inputs and outputs of each case by name."""
    with np.load(_FOLDER / "cases.npz") as file:
        data = file["data"].tobytes()
    at = 0

    def take(kept: Any) -> Any:
        nonlocal at
        if isinstance(kept, list):
            return [take(element) for element in kept]
        array = np.frombuffer(data, kept["dtype"], int(np.prod(kept["shape"])), at).reshape(kept["shape"])
        at += array.nbytes
        return array.copy()

    return [
        ({n: take(v) for n, v in case["inputs"]}, {n: take(v) for n, v in case["outputs"]}) for case in _CASES
    ]


def model_of(op: str, inputs: dict[str, Any], outputs: list[str], **attributes: Any) -> bytes:
    """One node over sequences; all outputs except the flag are sequences like the first one."""

    def sequence(name: str, value: list[Array]) -> onnx.ValueInfoProto:
        kind = helper.np_dtype_to_tensor_dtype(value[0].dtype)
        return helper.make_tensor_sequence_value_info(name, kind, None)

    stated = [
        sequence(name, value)
        if isinstance(value, list)
        else helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in inputs.items()
    ]
    lists = [value for value in inputs.values() if isinstance(value, list)]
    like = {"new_first": lists[-1], "new_second": lists[-1]}
    given = [
        helper.make_tensor_value_info(name, TensorProto.BOOL, [1])
        if name == "flag"
        else sequence(name, like.get(name, lists[0]))
        for name in outputs
        if name
    ]
    node = helper.make_node(op, list(inputs), outputs, domain=MICROSOFT, **attributes)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(
        helper.make_graph([node], "g", stated, given), opset_imports=opsets, ir_version=8
    )
    return model.SerializeToString()


@pytest.mark.parametrize("number", range(len(_CASES)))
def test_optimizers_compute_what_onnxruntime_training_computes(number: int) -> None:
    case, (inputs, expected) = _CASES[number], recorded()[number]
    session = ortrain.InferenceSession(model_of(case["op"], inputs, list(expected), **case["attributes"]))
    for name, found in zip(expected, session.run(None, inputs), strict=True):
        if name == "flag":
            np.testing.assert_array_equal(found, expected[name])
            continue
        assert len(found) == len(expected[name])
        for a, b in zip(found, expected[name], strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, 1e-6, 1e-6, err_msg=name)


def test_what_has_no_output_is_updated_where_it_lies() -> None:
    inputs, expected = recorded()[0]
    case = _CASES[0]
    session = ortrain.InferenceSession(model_of(case["op"], inputs, ["flag"], **case["attributes"]))
    assert session.run(None, inputs)[0].item()
    for name in ("weights", "first", "second"):
        for found, wanted in zip(inputs[name], expected[f"new_{name}"], strict=True):
            np.testing.assert_allclose(found, wanted, 1e-6, 1e-6, err_msg=name)


def test_what_has_an_output_stays_as_it_was() -> None:
    inputs, _ = recorded()[0]
    before = {name: [x.copy() for x in value] for name, value in inputs.items() if isinstance(value, list)}
    case = _CASES[0]
    outputs = ["flag", "new_weights", "new_first", "new_second"]
    ortrain.InferenceSession(model_of(case["op"], inputs, outputs, **case["attributes"])).run(None, inputs)
    for name, value in before.items():
        for a, b in zip(value, inputs[name], strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_adamw_in_every_type(dtype: str) -> None:
    """Weights and gradients of 16 bits have moments of type float."""
    rng = np.random.default_rng(3)
    moments = "float32" if dtype == "float16" else dtype
    shapes = [(4, 3), (2000,)]
    w, g = ([rng.uniform(-1, 1, s).astype(dtype) for s in shapes] for _ in range(2))
    m, v = ([rng.uniform(0, 1, s).astype(moments) for s in shapes] for _ in range(2))
    inputs = {
        "rate": np.array([0.1], np.float32), "step": np.array([3], np.int64),
        "weights": w, "gradients": g, "first": m, "second": v,
    }  # fmt: skip
    outputs = ["flag", "new_weights", "new_first", "new_second"]
    found = ortrain.InferenceSession(model_of("AdamWOptimizer", inputs, outputs)).run(None, inputs)
    rate, alpha, beta, epsilon, decay = (float(np.float32(x)) for x in (0.1, 0.9, 0.999, 1e-8, 1e-2))
    for k in range(len(shapes)):
        w0, g0, m0, v0 = (x[k].astype(np.float64) for x in (w, g, m, v))
        m1, v1 = alpha * m0 + (1 - alpha) * g0, beta * v0 + (1 - beta) * g0 * g0
        root = np.sqrt(v1 / (1 - beta**3)) + epsilon
        w1 = w0 * (1 - rate * decay) - rate / (1 - alpha**3) * m1 / root
        tolerance = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-12}[dtype]
        for array, wanted in zip((found[1][k], found[2][k], found[3][k]), (w1, m1, v1), strict=True):
            np.testing.assert_allclose(array.astype(np.float64), wanted, tolerance, tolerance)
        assert found[1][k].dtype == dtype


def test_wrong_sequences_are_rejected_before_a_run_or_with_the_tensor() -> None:
    inputs, _ = recorded()[0]
    case = _CASES[0]
    integers = {**inputs, "weights": [x.astype(np.int64) for x in inputs["weights"]]}
    with pytest.raises(
        OrtrainError, match=r"input 2 \('weights'\) is a sequence of type int64, expected floating"
    ):
        ortrain.InferenceSession(model_of(case["op"], integers, ["flag"]))
    session = ortrain.InferenceSession(model_of(case["op"], inputs, ["flag"]))
    with pytest.raises(OrtrainError, match="input 3 has 2 tensors, expected 3, as many as input 2"):
        session.run(None, {**inputs, "gradients": inputs["gradients"][:2]})
    other = [inputs["first"][0], inputs["first"][0], inputs["first"][2]]
    with pytest.raises(OrtrainError, match=r"tensor 1 of input 4 is float32\[3, 2\], expected float32\[5\]"):
        session.run(None, {**inputs, "first": other})
    with pytest.raises(OrtrainError, match="the step, is 0, expected 1 or more"):
        session.run(None, {**inputs, "step": np.array([0], np.int64)})
    with pytest.raises(OrtrainError, match="expected adam_mode 0 or 1, found 2"):
        ortrain.InferenceSession(model_of(case["op"], inputs, ["flag"], adam_mode=2))
    with pytest.raises(OrtrainError, match="expected norm_type 'fro', found 'one'"):
        ortrain.InferenceSession(
            model_of("InplaceClipGradNorm", {"g": inputs["gradients"]}, ["clipped"], norm_type="one")
        )


# ---------------------------------------------------------------------------------------------------------------------
# LambOptimizer: You et al., 2020.


def lamb(
    rate: float, step: int, w: Array, g: Array, m: Array, v: Array, alpha: float = 0.9, beta: float = 0.999,
    decay: float = 0.0, epsilon: float = 1e-6, low: float = -np.inf, high: float = np.inf, correct: bool = True,
) -> tuple[Array, Array, Array]:  # fmt: skip
    alpha, beta, decay, epsilon = (float(np.float32(x)) for x in (alpha, beta, decay, epsilon))
    m, v = alpha * m + (1 - alpha) * g, beta * v + (1 - beta) * g * g
    r = (
        m / (1 - alpha**step if correct else 1) / (np.sqrt(v / (1 - beta**step if correct else 1)) + epsilon)
        + decay * w
    )
    lengths = np.linalg.norm(w), np.linalg.norm(r)
    phi = float(np.clip(lengths[0] / lengths[1], low, high)) if min(lengths) > 0 else 1.0
    return w - rate * phi * r, m, v


@pytest.mark.parametrize(
    "settings", [{}, {"correct": False}, {"low": 0.5, "high": 0.6}, {"decay": 0.1, "alpha": 0.7}]
)
def test_lamb(settings: dict[str, Any]) -> None:
    shapes = [(3, 4), (5,)]
    w, g, m = ([uniform(*s, seed=k) for s in shapes] for k in range(3))
    w[1] = np.zeros(5)  # without a norm there is no ratio
    v = [np.abs(uniform(*s, seed=3)) for s in shapes]
    groups = [[w[k], g[k], m[k], v[k], None] for k in range(2)]
    attributes: dict[str, Any] = {}
    for ours, theirs in (("alpha", "alpha"), ("beta", "beta"), ("decay", "lambda"), ("epsilon", "epsilon")):
        if ours in settings:
            attributes[theirs] = [settings[ours]] * 2
    if "low" in settings:
        attributes |= {"ratio_min": settings["low"], "ratio_max": settings["high"]}
        settings = {
            **settings,
            "low": float(np.float32(settings["low"])),
            "high": float(np.float32(settings["high"])),
        }
    if "correct" in settings:
        attributes["do_bias_correction"] = 0
    rate, step = 0.1, 4
    expected: list[Array | None] = [np.array([step + 1])]
    for k in range(2):
        w1, m1, v1 = lamb(rate, step, w[k], g[k], m[k], v[k], **settings)
        expected += [w1, w1 - w[k], m1, v1]
    outputs = (True, True, True, True, True, False, True, True, True, True)
    inputs = [None, None, None, np.array([rate]), np.array([step]), *groups[0], *groups[1][:4]]
    op = Op("LambOptimizer", attributes, MICROSOFT, outputs=outputs)
    check_forward(op, inputs, [x for x in expected if x is not None], rtol=1e-9)


def test_lamb_scales_and_clips_and_waits_for_its_signal() -> None:
    w, g, m, v = uniform(3, 4), uniform(3, 4, seed=1), uniform(3, 4, seed=2), np.abs(uniform(3, 4, seed=3))
    scale, norm = np.array(8.0), np.array(40.0)
    op = Op("LambOptimizer", {}, MICROSOFT, outputs=(True, True, False, True, True))
    wanted = lamb(0.1, 2, w, g / 40, m, v)
    rest = [np.array([0.1]), np.array([2]), w, g, m, v]
    check_forward(op, [np.array(True), scale, norm, *rest], [np.array([3]), *wanted], rtol=1e-9)
    check_forward(op, [np.array(False), scale, norm, *rest], [np.array([2]), w, m, v], rtol=1e-9)


def test_lamb_rejects_what_it_cannot_do() -> None:
    w = uniform(3)
    op = Op(
        "LambOptimizer", {"alpha": [0.9]}, MICROSOFT, outputs=(False, True, False, False, False, False, True)
    )
    start = [None, None, None, np.array([0.1]), None]
    check_rejected(
        op, [*start, w, w, w, w, None, w, w, w, w], "'alpha' has 1 value, expected one for each group"
    )
    check_rejected(
        op, [*start, w, w, w], "input 8 is missing: a group has weights, gradients and two moments"
    )


# ---------------------------------------------------------------------------------------------------------------------
# Events.


@pytest.mark.parametrize("type_", ["RecordEvent", "WaitEvent"])
def test_events_pass_their_data_on(type_: str) -> None:
    x, y = uniform(2, 3), uniform(4)
    check_forward(Op(type_, {}, MICROSOFT, outputs=2), [np.array(7), x, y], [x, y])


def test_yield_op_is_rejected_at_load_in_words() -> None:
    node = helper.make_node("YieldOp", ["x"], ["y"], name="yield", domain=MICROSOFT, full_shape_outputs=[0])
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy"]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    graph = helper.make_graph([node], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    with pytest.raises(OrtrainError, match=r'node "yield" \(com.microsoft.YieldOp\): .* ORTModule'):
        ortrain.InferenceSession(model.SerializeToString())
