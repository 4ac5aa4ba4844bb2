"""Cross entropy and likelihood losses and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import MICROSOFT, Array, Op, check_forward, check_gradient, check_rejected, uniform

SPECIAL_POINTS = {
    "not recorded": ["NegativeLogLikelihoodLoss"],
    "as SoftmaxCrossEntropyLoss": ["com.microsoft.SoftmaxCrossEntropyLossInternal"],
}

# Shape of the scores [N, C, ...].
SHAPES = [(1, 1), (5, 17), (2, 3, 4), (2, 5, 2, 3)]
REDUCTIONS = ["none", "mean", "sum"]


def _labels(shape: tuple[int, ...], dtype: Any = np.int64) -> Array:
    places = (shape[0], *shape[2:])
    return np.random.default_rng(3).integers(0, shape[1], places).astype(dtype)


def _loss(log_p: Array, labels: Array, weights: Array | None, ignored: int | None, reduction: str) -> Array:
    used = np.ones(labels.shape, bool) if ignored is None else labels != ignored
    which = np.where(used, labels, 0)
    w = (np.ones(log_p.shape[1]) if weights is None else weights)[which] * used
    losses = -w * np.take_along_axis(log_p, which[:, None], 1)[:, 0]
    if reduction == "none":
        return losses
    return np.asarray(losses.sum() / (w.sum() if reduction == "mean" else 1))


def _log_softmax(x: Array) -> Array:
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def _some_ignored(shape: tuple[int, ...], ignored: int | None) -> Array:
    labels = _labels(shape)
    if ignored is not None:
        labels.flat[0] = ignored
    return labels


# Without those that ignore everything (0 / 0): see test_everything_ignored.
CASES = [(s, i) for s in SHAPES for i in (None, 0, -100) if (_some_ignored(s, i) != i).any()]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("shape", "ignored"), CASES, ids=str)
def test_cross_entropy(shape: tuple[int, ...], reduction: str, ignored: int | None, weighted: bool) -> None:
    x, labels = uniform(*shape, low=-3, high=3), _some_ignored(shape, ignored)
    weights = uniform(shape[1], low=0.5, high=2, seed=4) if weighted else None
    attributes: dict[str, Any] = {"reduction": reduction}
    if ignored is not None:
        attributes["ignore_index"] = ignored
    log_p = _log_softmax(x)
    inputs = [x, labels] + ([weights] if weights is not None else [])
    expected = [_loss(log_p, labels, weights, ignored, reduction), log_p]
    check_forward(
        Op("SoftmaxCrossEntropyLoss", attributes, opset=13, outputs=2), inputs, expected, rtol=1e-11
    )
    check_forward(Op("SoftmaxCrossEntropyLoss", attributes, opset=12), inputs, expected[:1], rtol=1e-11)
    check_gradient(Op("SoftmaxCrossEntropyLoss", attributes, opset=13), inputs, wrt=[0])

    nll = [log_p, *inputs[1:]]
    check_forward(Op("NegativeLogLikelihoodLoss", attributes, opset=13), nll, expected[:1], rtol=1e-11)
    check_gradient(Op("NegativeLogLikelihoodLoss", attributes, opset=13), nll, wrt=[0])

    internal: list[Array | None] = [x, labels, weights]
    if ignored is not None:
        internal.append(np.asarray(ignored))
    while internal[-1] is None:
        internal.pop()
    op = Op("SoftmaxCrossEntropyLossInternal", {"reduction": reduction}, MICROSOFT, outputs=2)
    check_forward(op, internal, expected, rtol=1e-11)
    check_gradient(op, internal, wrt=[0], outputs=[0])


def test_float_and_int32_labels() -> None:
    shape = (70, 1000)
    x, labels = uniform(*shape, low=-4, high=4, dtype=np.float32), _labels(shape, np.int32)
    log_p = _log_softmax(x.astype(np.float64))
    expected = [_loss(log_p, labels, None, None, "mean").astype(np.float32), log_p.astype(np.float32)]
    check_forward(Op("SoftmaxCrossEntropyLoss", outputs=2), [x, labels], expected)
    onehot = np.eye(shape[1])[labels]
    gradient = 0.5 * (np.exp(log_p) - onehot) / shape[0]
    check_forward(
        Op("SoftmaxCrossEntropyLossGrad", {"reduction": "mean"}, MICROSOFT),
        [np.asarray(0.5, np.float32), log_p.astype(np.float32), labels],
        [gradient.astype(np.float32)],
    )


def test_gradient_adds_the_bias_of_the_internal_form() -> None:
    log_p, labels, bias = _log_softmax(uniform(3, 4)), _labels((3, 4)), uniform(3, 4, seed=6)
    op = Op("SoftmaxCrossEntropyLossInternalGrad", {"reduction": "sum"}, MICROSOFT)
    expected = np.exp(log_p) - np.eye(4)[labels] + bias
    check_forward(op, [np.asarray(1.0), log_p, labels, None, None, bias], [expected], rtol=1e-11)


def test_everything_ignored() -> None:
    x, labels = uniform(3, 4), np.full(3, -1)
    op = {"ignore_index": -1}
    check_forward(Op("SoftmaxCrossEntropyLoss", {**op, "reduction": "sum"}), [x, labels], [np.asarray(0.0)])
    check_forward(Op("SoftmaxCrossEntropyLoss", {**op, "reduction": "none"}), [x, labels], [np.zeros(3)])


def test_refusals() -> None:
    x = uniform(3, 4)
    check_rejected(
        Op("SoftmaxCrossEntropyLoss"), [x, np.array([0, 4, 1])], "label 4 at position 1 is not one of the 4"
    )
    check_rejected(Op("SoftmaxCrossEntropyLoss"), [x, np.array([0, -1, 1])], "label -1 at position 1")
    check_rejected(Op("SoftmaxCrossEntropyLoss"), [x, np.array([0, 1])], "labels must have the shape")
    check_rejected(
        Op("SoftmaxCrossEntropyLoss"),
        [x, np.array([0.0, 1, 2])],
        "float64, which this operator does not accept",
    )
    check_rejected(
        Op("SoftmaxCrossEntropyLoss"), [x, np.array([0, 1, 2]), uniform(3)], "weights must hold one float64"
    )
    check_rejected(
        Op("SoftmaxCrossEntropyLoss", {"reduction": "avg"}), [x, np.array([0, 1, 2])], "reduction must be"
    )
