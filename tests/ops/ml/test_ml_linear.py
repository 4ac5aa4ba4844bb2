"""LinearRegressor and LinearClassifier, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import check_forward, make_model, uniform
from ml_cases import NUMBERS, TRANSFORMS, check_against_onnxruntime, check_gradient_in_float, features, ml
from onnx.reference import ReferenceEvaluator

SPECIAL_POINTS = {"linear": ["ai.onnx.ml.LinearRegressor"], "not in PyTorch": ["ai.onnx.ml.LinearClassifier"]}


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("targets", [1, 2])
def test_linear_regressor(targets: int, dtype: Any) -> None:
    attributes = {
        "coefficients": uniform(3 * targets).tolist(),
        "intercepts": uniform(targets, seed=1).tolist(),
        "targets": targets,
    }
    op = ml("LinearRegressor", attributes)
    x = features(dtype)
    w = np.float32(attributes["coefficients"]).reshape(targets, 3)
    expected = (x.astype(np.float32) @ w.T + np.float32(attributes["intercepts"])).astype(np.float32)
    check_forward(op, [x], [expected], rtol=1e-6)
    check_gradient_in_float(op, [features(np.float64)])
    check_gradient_in_float(op, [features(np.float64, 3)])


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("classes", [2, 3])
def test_linear_classifier(classes: int, transform: str) -> None:
    scale = 0.03 if transform == "PROBIT" else 1.0
    w, b = (
        uniform(classes, 3) * scale,
        uniform(classes, seed=1) * scale + (0.5 if transform == "PROBIT" else 0),
    )
    attributes = {
        "coefficients": w.ravel().tolist(), "intercepts": b.tolist(), "post_transform": transform,
        "classlabels_ints": [5, 2, 9][:classes], "multi_class": 1,
    }  # fmt: skip
    op = ml("LinearClassifier", attributes, outputs=2)
    x = features(np.float32)
    check_against_onnxruntime(op, [x], rtol=1e-4 if transform == "PROBIT" else 1e-5)
    if transform in ("NONE", "LOGISTIC", "SOFTMAX"):
        check_gradient_in_float(op, [x.astype(np.float64)])


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_linear_classifier_of_two_classes_with_one_row(transform: str) -> None:
    attributes = {
        "coefficients": [0.4, -0.3, 0.2], "intercepts": [0.1], "classlabels_ints": [4, 6],
        "post_transform": transform,
    }  # fmt: skip
    op, x = ml("LinearClassifier", attributes, outputs=2), features(np.float32)
    expected = ReferenceEvaluator(make_model(op, [x])).run(None, {"x0": x})
    check_forward(op, [x], [np.asarray(expected[0], np.int64), np.float32(expected[1])], rtol=1e-5)
    check_gradient_in_float(op, [x.astype(np.float64)])
