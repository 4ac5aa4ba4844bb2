"""Losses of com.microsoft, against NumPy and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import MICROSOFT, Array, Op, check_forward, check_gradient, run, uniform

SPECIAL_POINTS = {
    "not in PyTorch": [
        "com.microsoft.NegativeLogLikelihoodLossInternal",
        "com.microsoft.NegativeLogLikelihoodLossInternal2",
    ]
}


def _log_softmax(x: Array) -> Array:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5), (1, 1), (5,)], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("opset", [12, 17])
def test_softmax_cross_entropy(shape: tuple[int, ...], reduction: str, opset: int) -> None:
    logits, label = uniform(*shape, low=-3, high=3), uniform(*shape, low=0, high=1, seed=1)
    op = Op("SoftmaxCrossEntropy", {"reduction": reduction}, MICROSOFT, opset, outputs=2)
    log_p = _log_softmax(logits)
    losses = -(label * log_p).sum(-1)
    check_forward(
        op, [logits, label], [np.asarray(losses.mean() if reduction == "mean" else losses.sum()), log_p]
    )
    check_gradient(op, [logits, label], outputs=[0])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_sparse_softmax_cross_entropy(reduction: str, weighted: bool, dtype: Any) -> None:
    logits, label = uniform(2, 3, 4), np.array([[0, 3, 1], [2, 2, 0]], dtype)
    inputs = [logits, label] + ([uniform(2, 3, low=0.1)] if weighted else [])
    op = Op("SparseSoftmaxCrossEntropy", {"reduction": reduction})
    check_gradient(op, inputs, wrt=[0])


def test_sparse_softmax_cross_entropy_names_a_label_out_of_range() -> None:
    check_rejected_at_run(Op("SparseSoftmaxCrossEntropy"), [uniform(2, 3), np.array([0, 3], np.int64)], "3")


def check_rejected_at_run(op: Op, inputs: list[Array], match: str) -> None:
    with pytest.raises(RuntimeError, match=match) as caught:
        run(op, inputs)
    assert "under_test" in str(caught.value)


@pytest.mark.parametrize("form", ["", "2"])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_likelihood_with_ignore_index_as_input(form: str, reduction: str) -> None:
    log_p, labels = _log_softmax(uniform(4, 3)), np.array([0, 2, 1, 2], np.int64)
    op = Op(f"NegativeLogLikelihoodLossInternal{form}", {"reduction": reduction}, MICROSOFT)
    used = labels != 2
    losses = -log_p[np.arange(4), labels] * used
    expected = {
        "none": losses,
        "sum": np.asarray(losses.sum()),
        "mean": np.asarray(losses.sum() / used.sum()),
    }
    inputs = [log_p, labels, None, np.array(2, np.int64)]
    check_forward(op, inputs, [expected[reduction]], rtol=1e-12)
    check_gradient(op, inputs, wrt=[0])
