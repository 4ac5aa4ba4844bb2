"""The numeric operators of ai.onnx.ml, and TfIdfVectorizer on integers, against stock onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from helpers import (
    Array,
    Op,
    apart,
    check_forward,
    check_gradient,
    check_rejected,
    gradients_of_sum,
    make_model,
    uniform,
)
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

ML = "ai.onnx.ml"


def ml(kind: str, attributes: dict[str, Any] | None = None, outputs: int = 1, version: int = 3) -> Op:
    return Op(kind, attributes or {}, ML, outputs=outputs, version=version)


def check_against_onnxruntime(op: Op, inputs: Sequence[Array], rtol: float = 1e-5) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(make_model(op, inputs).SerializeToString(), options)
    check_forward(op, inputs, session.run(None, {f"x{i}": x for i, x in enumerate(inputs)}), rtol=rtol)


def check_gradient_in_float(op: Op, inputs: Sequence[Array]) -> None:
    """These operators return float for any input type, so steps and tolerances are large."""
    check_gradient(op, inputs, rtol=1e-3, step=1e-2)


NUMBERS = [np.float32, np.float64, np.int32, np.int64]


def features(dtype: Any, *shape: int) -> Array:
    return (uniform(*(shape or (4, 3)), low=-5, high=5)).astype(dtype)


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
    check_rejected(ml("OneHotEncoder", {"cats_strings": ["a"]}), [np.array([1])], "strings")


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
    check_rejected(ml("LabelEncoder", {"keys_strings": ["a"], "values_int64s": [1]}), [x], "strings")
    check_rejected(
        ml("LabelEncoder", {"keys_int64s": keys, "values_int64s": [1]}), [x], "3 keys and 1 values"
    )


TRANSFORMS = ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"]


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


def trees(
    count: int, depth: int, classes: int, prefix: str, modes: Sequence[str], low: float = -1.0
) -> dict[str, Any]:
    """Full binary trees with random tests and weights at the leaves."""
    rng = np.random.default_rng(count * 100 + depth)
    nodes: dict[str, list[Any]] = {
        k: [] for k in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids",
                        "missing_value_tracks_true")
    }  # fmt: skip
    leaves: dict[str, list[Any]] = {k: [] for k in ("treeids", "nodeids", "ids", "weights")}
    inner = 2**depth - 1
    for tree in range(count):
        for node in range(2 * inner + 1):
            leaf = node >= inner
            nodes["treeids"].append(tree)
            nodes["nodeids"].append(node)
            nodes["featureids"].append(0 if leaf else int(rng.integers(3)))
            nodes["values"].append(0.0 if leaf else float(rng.integers(-4, 4)))
            nodes["modes"].append("LEAF" if leaf else modes[int(rng.integers(len(modes)))])
            nodes["truenodeids"].append(0 if leaf else 2 * node + 1)
            nodes["falsenodeids"].append(0 if leaf else 2 * node + 2)
            nodes["missing_value_tracks_true"].append(int(rng.integers(2)))
            if leaf:
                for target in range(classes):
                    leaves["treeids"].append(tree)
                    leaves["nodeids"].append(node)
                    leaves["ids"].append(target)
                    leaves["weights"].append(float(rng.uniform(low, 1)))
    return {f"nodes_{k}": v for k, v in nodes.items()} | {f"{prefix}_{k}": v for k, v in leaves.items()}


MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]


@pytest.mark.parametrize("modes", [[m] for m in MODES] + [MODES])
@pytest.mark.parametrize(("count", "depth", "targets"), [(1, 2, 1), (3, 3, 2), (2, 0, 1)])
@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_tree_ensemble_regressor(
    aggregate: str, count: int, depth: int, targets: int, modes: Sequence[str]
) -> None:
    attributes = trees(count, depth, targets, "target", modes)
    attributes |= {"n_targets": targets, "aggregate_function": aggregate, "base_values": [0.25] * targets}
    x = np.round(features(np.float32, 20, 3))
    check_against_onnxruntime(ml("TreeEnsembleRegressor", attributes, version=1), [x])


def test_missing_features_take_their_branch() -> None:
    x = np.round(features(np.float32, 20, 3))
    x[::2, 0] = np.nan
    x[::3, 2] = np.nan
    attributes = trees(3, 3, 1, "target", ["BRANCH_LEQ"]) | {"n_targets": 1}
    check_against_onnxruntime(ml("TreeEnsembleRegressor", attributes, version=1), [x])


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("classes", [2, 3])
def test_tree_ensemble_classifier(classes: int, transform: str) -> None:
    attributes = trees(3, 3, classes, "class", MODES)
    attributes |= {"classlabels_int64s": [4, 2, 9][:classes], "post_transform": transform}
    x = np.round(features(np.float32, 20, 3))
    op = ml("TreeEnsembleClassifier", attributes, outputs=2, version=1)
    if classes == 3:
        check_against_onnxruntime(op, [x])
    else:  # if onnxruntime uses neither the largest score nor the given labels
        expected = ReferenceEvaluator(make_model(op, [x])).run(None, {"x0": x})
        check_forward(op, [x], expected, rtol=1e-5)


@pytest.mark.parametrize(("low", "transform"), [(-1.0, "NONE"), (-1.0, "LOGISTIC"), (0.0, "NONE")])
def test_tree_ensemble_classifier_with_weights_of_one_class(low: float, transform: str) -> None:
    attributes = trees(1, 3, 1, "class", MODES, low)
    attributes |= {"classlabels_int64s": [0, 1], "post_transform": transform}
    x = np.round(features(np.float32, 20, 3))
    check_against_onnxruntime(ml("TreeEnsembleClassifier", attributes, outputs=2, version=1), [x])


def test_trees_that_do_not_end_are_refused() -> None:
    attributes = trees(1, 2, 1, "target", ["BRANCH_LEQ"]) | {"n_targets": 1}
    x = features(np.float32)
    attributes["nodes_truenodeids"][1] = 0
    check_rejected(ml("TreeEnsembleRegressor", attributes), [x], "lead back")
    attributes["nodes_truenodeids"][1] = 77
    check_rejected(ml("TreeEnsembleRegressor", attributes), [x], "node 77, which does not exist")
    attributes["nodes_truenodeids"][1] = 3
    attributes["nodes_featureids"][0] = 3
    check_rejected(ml("TreeEnsembleRegressor", attributes), [x], "use 4 features")


def test_tfidf_vectorizer_of_integers() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    assert onnxruntime
    x = np.array([[1, 1, 3, 3, 3, 7], [8, 6, 7, 5, 6, 8]], np.int32)
    pool = [2, 3, 5, 4, 5, 6, 7, 8, 6, 7]
    for mode in ("TF", "IDF", "TFIDF"):
        for skip in (0, 1, 5):
            for shortest, longest in ((1, 1), (1, 2), (2, 2)):
                attributes = {
                    "mode": mode, "min_gram_length": shortest, "max_gram_length": longest, "max_skip_count": skip,
                    "ngram_counts": [0, 4], "ngram_indexes": list(range(7)), "pool_int64s": pool,
                    "weights": [0.5, 1.0, 2.0, 3.0, 0.25, 4.0, 5.0],
                }  # fmt: skip
                op = Op("TfIdfVectorizer", attributes)
                check_against_onnxruntime(op, [x])
                check_against_onnxruntime(op, [x[1].astype(np.int64)])
    check_rejected(Op("TfIdfVectorizer", {**attributes, "ngram_counts": [0, 5]}), [x], "does not divide")
    check_rejected(Op("TfIdfVectorizer", {**attributes, "mode": "ALL"}), [x], "TF, IDF or TFIDF")
