"""Dropout: what it keeps, how often, and that runs repeat."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import (
    MICROSOFT,
    Array,
    Op,
    check_forward,
    check_gradient,
    check_rejected,
    gradient_model,
    make_model,
    run,
    run_model,
    uniform,
)
from onnx import helper

SPECIAL_POINTS = {"linear": ["Dropout"]}

TRAINING = np.asarray(True)


def _ratio(value: float) -> Array:
    return np.asarray(value, np.float32)


def test_passes_on_when_not_training() -> None:
    x = uniform(3, 5, dtype=np.float32)
    ones = np.ones(x.shape, bool)
    for opset in (12, 13, 22):
        check_forward(Op("Dropout", opset=opset, outputs=2), [x], [x, ones])
        check_forward(Op("Dropout", opset=opset, outputs=2), [x, _ratio(0.3), np.asarray(False)], [x, ones])
        check_forward(Op("Dropout", opset=opset, outputs=2), [x, _ratio(0), TRAINING], [x, ones])


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_keeps_the_share_and_scales(ratio: float, dtype: type) -> None:
    x = uniform(100_003, low=0.5, high=1, dtype=dtype)
    y, mask = run(Op("Dropout", outputs=2), [x, _ratio(ratio), TRAINING])
    share = float(_ratio(ratio))
    np.testing.assert_allclose(y, np.where(mask, x / (1 - share), 0), rtol=1e-6)
    # Five standard deviations of a binomial proportion.
    assert abs(mask.mean() - (1 - ratio)) < 5 * np.sqrt(ratio * (1 - ratio) / x.size)
    # Neighbours are independent.
    assert abs(np.corrcoef(mask[1:], mask[:-1])[0, 1]) < 0.02


def test_a_seed_of_its_own_repeats() -> None:
    x = np.ones((40, 5), np.float32)
    first = run(Op("Dropout", {"seed": 7}, outputs=2), [x, _ratio(0.5), TRAINING])
    again = run(Op("Dropout", {"seed": 7}, outputs=2), [x, _ratio(0.5), TRAINING])
    other = run(Op("Dropout", {"seed": 8}, outputs=2), [x, _ratio(0.5), TRAINING])
    np.testing.assert_array_equal(first[1], again[1])
    assert (first[1] != other[1]).any()


def test_an_element_does_not_know_how_many_there_are() -> None:
    """Vectors, remainders and the shares of threads draw the same values."""
    ratio = _ratio(0.5)
    (longest,) = run(Op("Dropout", {"seed": 7}), [np.ones(300_000, np.float32), ratio, TRAINING])
    for n in (1, 3, 5, 63, 64, 65, 1023, 1025, 5000, 262_147):
        (y,) = run(Op("Dropout", {"seed": 7}), [np.ones(n, np.float32), ratio, TRAINING])
        np.testing.assert_array_equal(y, longest[:n])


def test_two_nodes_draw_different_numbers() -> None:
    x = np.ones(1000, np.float32)
    second = helper.make_node("Dropout", ["x0", "x1", "x2"], ["z"])
    model = make_model(Op("Dropout"), [x, _ratio(0.5), TRAINING], extra_nodes=[second], outputs=["y0", "z"])
    found = run_model(model.SerializeToString(), {"x0": x, "x1": _ratio(0.5), "x2": TRAINING})
    assert (found["y0"] != found["z"]).any()


@pytest.mark.parametrize("shape", [(), (1,), (0,), (5,), (3, 1001)], ids=str)
def test_shapes(shape: tuple[int, ...]) -> None:
    x = np.ones(shape, np.float32)
    y, mask = run(Op("Dropout", outputs=2), [x, _ratio(0.5), TRAINING])
    np.testing.assert_array_equal(y, np.where(mask, 2, 0))
    assert y.shape == mask.shape == shape


def test_gradient_uses_the_mask_of_the_run() -> None:
    x = uniform(30, 7)
    total = helper.make_node("ReduceSum", ["y0"], ["loss"], keepdims=0)
    model = make_model(
        Op("Dropout"), [x, _ratio(0.25), TRAINING], extra_nodes=[total], outputs=["loss", "y0"]
    )
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("loss", 11, []))
    backward = gradient_model(model.SerializeToString(), ["x0"], "loss")
    found = run_model(backward, {"x0": x, "x1": _ratio(0.25), "x2": TRAINING})
    np.testing.assert_allclose(found["x0_grad"], np.where(found["y0"] == 0, 0, 1 / 0.75), rtol=1e-6)


def test_gradient_operator() -> None:
    dy, mask = uniform(4, 6), uniform(4, 6, seed=1) > 0
    op = Op("DropoutGrad", domain=MICROSOFT)
    check_forward(op, [dy, mask, _ratio(0.5), TRAINING], [np.where(mask, 2 * dy, 0)])


def test_refusals() -> None:
    x = uniform(3)
    check_rejected(Op("Dropout"), [x, _ratio(1.5), TRAINING], r"ratio must be in \[0, 1\), found 1.5")
    check_rejected(Op("Dropout"), [x, np.ones(2, np.float32), TRAINING], "ratio must be a single value")
    check_rejected(
        Op("DropoutGrad", domain=MICROSOFT), [x, np.ones(2, bool)], r"mask must be bool\[3\] for dY of shape"
    )


@pytest.mark.parametrize("shape", [(3, 5), (1,), (0, 2), ()], ids=str)
@pytest.mark.parametrize("opset", [12, 13, 22])
@pytest.mark.parametrize("training", [False, True])
def test_gradient(training: bool, opset: int, shape: tuple[int, ...]) -> None:
    # The seed fixes what is kept.
    op = Op("Dropout", {"seed": 5}, opset=opset)
    check_gradient(op, [uniform(*shape), _ratio(0.4), np.asarray(training)], wrt=[0])
