"""Operators of ai.onnx.ml that convert features, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import apart, check_forward, check_gradient, check_rejected, gradients_of_sum
from ml_cases import NUMBERS, check_against_onnxruntime, check_gradient_in_float, features, ml
from onnx import numpy_helper

SPECIAL_POINTS = {
    "linear": ["ai.onnx.ml.ArrayFeatureExtractor", "ai.onnx.ml.FeatureVectorizer", "ai.onnx.ml.Scaler"],
    "not in PyTorch": ["ai.onnx.ml.Imputer", "ai.onnx.ml.Normalizer"],
}


@pytest.mark.parametrize("dtype", NUMBERS)
def test_array_feature_extractor(dtype: Any) -> None:
    for shape in ((4, 3), (2, 2, 3), (3,)):
        x, at = features(dtype, *shape), np.array([2, 0, 2])
        expected = np.take(x, at, axis=-1).reshape(*(shape[:-1] or (1,)), 3)
        check_forward(ml("ArrayFeatureExtractor"), [x, at], [expected])
        if dtype == np.float64:
            check_gradient(ml("ArrayFeatureExtractor"), [x, at])
            check_gradient(ml("ArrayFeatureExtractor"), [x, at[None]])
    check_rejected(ml("ArrayFeatureExtractor"), [features(dtype), np.array([0, 3])], "index 3 at position 1")
    check_rejected(ml("ArrayFeatureExtractor"), [features(dtype), np.array([-1])], "index -1 at position 0")


@pytest.mark.parametrize("dtype", NUMBERS)
def test_binarizer(dtype: Any) -> None:
    x = features(dtype)
    check_forward(ml("Binarizer", {"threshold": 1.5}), [x], [(x > 1.5).astype(dtype)])


@pytest.mark.parametrize("dtype", NUMBERS)
def test_scaler(dtype: Any) -> None:
    for attributes in (
        {"offset": [0.5, 1.0, -2.0], "scale": [2.0, 0.5, 3.0]},
        {"offset": [1.0], "scale": [0.5]},
    ):
        check_against_onnxruntime(ml("Scaler", attributes), [features(dtype)])
    check_gradient_in_float(ml("Scaler", {"offset": [0.5], "scale": [2.0, 0.5, 3.0]}), [features(np.float64)])
    check_gradient_in_float(ml("Scaler"), [features(np.float64, 0, 3)])
    check_rejected(ml("Scaler", {"scale": [1.0, 2.0]}), [features(dtype)], "one value, or one for each of 3")


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm: str, dtype: Any) -> None:
    check_against_onnxruntime(ml("Normalizer", {"norm": norm}), [features(dtype)], rtol=1e-6)
    x = (apart(4, 3, scale=2) + 4) * [-1, 1, 1]
    check_gradient_in_float(ml("Normalizer", {"norm": norm}), [x])
    check_gradient_in_float(ml("Normalizer", {"norm": norm}), [x[0]])


def test_normalizer_leaves_zeros() -> None:
    for norm in ("MAX", "L1", "L2"):
        check_forward(
            ml("Normalizer", {"norm": norm}), [np.zeros((2, 3), np.float32)], [np.zeros((2, 3), np.float32)]
        )


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_imputer(dtype: Any) -> None:
    x = np.array([[1, 7, 3], [7, 2, 7]]).astype(dtype)
    kind = "float" if dtype == np.float32 else "int64"
    for values in ([5, 6, 8], [9]):
        attributes = {
            f"imputed_value_{kind}s": [dtype(v).item() for v in values],
            f"replaced_value_{kind}": dtype(7).item(),
        }
        check_against_onnxruntime(ml("Imputer", attributes), [x])
    if dtype == np.float32:
        x[1, 1] = np.nan
        attributes = {"imputed_value_floats": [5.0, 6.0, 8.0], "replaced_value_float": float("nan")}
        check_against_onnxruntime(ml("Imputer", attributes), [x])
        for missing in (7.0, float("nan")):
            attributes = {"imputed_value_floats": [5.0], "replaced_value_float": missing}
            known = np.where(np.isnan(x), 2.0, x).astype(np.float64)
            check_gradient(ml("Imputer", attributes), [known + 1])
        (found,) = gradients_of_sum(ml("Imputer", attributes), [x.astype(np.float64)], [0])
        np.testing.assert_array_equal(found, ~np.isnan(x))
    check_rejected(ml("Imputer", {"imputed_value_floats": [1.0, 2.0]}), [features(np.float32)], "found 2")


def test_feature_vectorizer() -> None:
    a, b = features(np.float32, 4, 3), features(np.float32, 4, 2)
    for lengths in ([3, 2], [2, 4]):
        op = ml("FeatureVectorizer", {"inputdimensions": lengths})
        parts = [np.pad(v, ((0, 0), (0, 5)))[:, :n] for v, n in zip((a, b), lengths, strict=True)]
        check_forward(op, [a, b], [np.concatenate(parts, axis=1)])
        for length in ([3], [2], [5]):
            one = ml("FeatureVectorizer", {"inputdimensions": length})
            check_gradient_in_float(one, [a.astype(np.float64)])
        check_gradient_in_float(op, [a.astype(np.float64), b.astype(np.float64)])


def test_one_hot_encoder() -> None:
    categories = {"cats_int64s": [3, 1, 7]}
    for dtype in NUMBERS:
        x = np.array([[1, 3], [7, 2]]).astype(dtype)
        expected = (x[..., None] == np.array([3, 1, 7])).astype(np.float32)
        check_forward(ml("OneHotEncoder", categories), [x], [expected])
    check_against_onnxruntime(ml("OneHotEncoder", categories), [np.array([[1, 3], [7, 2]])])
    check_rejected(
        ml("OneHotEncoder", {**categories, "zeros": 0}), [np.array([[1, 4]])], "is not in cats_int64s"
    )
    check_rejected(ml("OneHotEncoder", {"cats_strings": ["a"]}), [np.array([1])], "cats_int64s is required")


def test_label_encoder() -> None:
    keys = [3, -1, 8]
    x = np.array([[8, 3], [5, -1]])
    check_against_onnxruntime(
        ml(
            "LabelEncoder",
            {"keys_int64s": keys, "values_floats": [0.5, 1.5, -2.0], "default_float": 9.0},
            version=2,
        ),
        [x],
    )
    check_against_onnxruntime(
        ml("LabelEncoder", {"keys_int64s": keys, "values_int64s": [1, 2, 3]}, version=2), [x]
    )
    # The standard compares bits, so NaN is a key too.
    floats = {"keys_floats": [0.5, float("nan"), 4.0], "values_int64s": [1, 2, 3], "default_int64": 7}
    check_forward(
        ml("LabelEncoder", floats, version=2), [np.float32([0.5, np.nan, 4.0, 3.0])], [np.array([1, 2, 3, 7])]
    )
    for key, value in ((np.int64, np.float64), (np.float64, np.int16), (np.int16, np.int64)):
        attributes = {
            "keys_tensor": numpy_helper.from_array(np.array(keys, key)),
            "values_tensor": numpy_helper.from_array(np.array([4, 5, 6], value)),
            "default_tensor": numpy_helper.from_array(np.array([42], value)),
        }
        expected = np.array([[6, 4], [42, 5]], value)
        check_forward(ml("LabelEncoder", attributes, version=4), [x.astype(key)], [expected])
    check_rejected(
        ml("LabelEncoder", {"keys_strings": ["a"], "values_int64s": [1]}),
        [x],
        "keys are string, but the input is",
    )
    check_rejected(
        ml("LabelEncoder", {"keys_int64s": keys, "values_int64s": [1]}), [x], "3 keys and 1 value,"
    )
