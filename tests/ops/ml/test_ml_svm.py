"""SVMRegressor and SVMClassifier, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import uniform
from ml_cases import check_against_onnxruntime, features, ml

KERNELS = [
    ("LINEAR", [0.0, 0.0, 0.0]),
    ("POLY", [0.3, 0.5, 2.0]),
    ("RBF", [0.2, 0.0, 0.0]),
    ("SIGMOID", [0.1, 0.2, 0.0]),
]


@pytest.mark.parametrize(("kernel", "params"), KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_svm_regressor(kernel: str, params: list[float], one_class: int) -> None:
    attributes = {
        "kernel_type": kernel, "kernel_params": params, "n_supports": 4, "one_class": one_class, "rho": [0.3],
        "coefficients": uniform(4).tolist(), "support_vectors": uniform(12, seed=1).tolist(),
    }  # fmt: skip
    check_against_onnxruntime(ml("SVMRegressor", attributes), [features(np.float32)])


def test_svm_regressor_without_support_vectors() -> None:
    attributes = {
        "rho": [0.3], "coefficients": uniform(3).tolist(), "n_supports": 0, "kernel_params": [0.0, 0.0, 0.0],
    }  # fmt: skip
    check_against_onnxruntime(ml("SVMRegressor", attributes), [features(np.float32)])


def svm_classifier(classes: int, kernel: str, params: list[float], probabilities: bool) -> dict[str, Any]:
    counts = [2, 3, 1, 2][:classes]
    total, pairs = sum(counts), classes * (classes - 1) // 2
    attributes: dict[str, Any] = {
        "kernel_type": kernel, "kernel_params": params, "vectors_per_class": counts,
        "classlabels_ints": [3, 5, 4, 8][:classes], "rho": uniform(pairs, seed=2).tolist(),
        "coefficients": uniform((classes - 1) * total).tolist(),
        "support_vectors": uniform(total * 3, seed=1, low=-4, high=4).tolist(),
    }  # fmt: skip
    if probabilities:
        attributes["prob_a"] = uniform(pairs, low=-2, high=-0.5, seed=3).tolist()
        attributes["prob_b"] = uniform(pairs, seed=4).tolist()
    return attributes


@pytest.mark.parametrize(("kernel", "params"), KERNELS)
@pytest.mark.parametrize("classes", [2, 3, 4])
@pytest.mark.parametrize("probabilities", [False, True])
def test_svm_classifier(classes: int, kernel: str, params: list[float], probabilities: bool) -> None:
    op = ml("SVMClassifier", svm_classifier(classes, kernel, params, probabilities), outputs=2)
    check_against_onnxruntime(op, [features(np.float32, 8, 3)], rtol=1e-4)


def test_svm_classifier_without_support_vectors() -> None:
    attributes = {
        "classlabels_ints": [3, 5, 4], "coefficients": uniform(9).tolist(), "rho": [0.1, 0.1, 0.1],
        "kernel_params": [0.0, 0.0, 0.0],
    }  # fmt: skip
    check_against_onnxruntime(ml("SVMClassifier", attributes, outputs=2), [features(np.float32)])
