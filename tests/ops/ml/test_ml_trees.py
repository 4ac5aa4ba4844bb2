"""TreeEnsembleRegressor and TreeEnsembleClassifier, against onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from helpers import check_forward, check_rejected, make_model
from ml_cases import check_against_onnxruntime, features, ml
from onnx.reference import ReferenceEvaluator


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


def test_trees_that_do_not_end_are_rejected() -> None:
    attributes = trees(1, 2, 1, "target", ["BRANCH_LEQ"]) | {"n_targets": 1}
    x = features(np.float32)
    attributes["nodes_truenodeids"][1] = 0
    check_rejected(ml("TreeEnsembleRegressor", attributes), [x], "lead back")
    attributes["nodes_truenodeids"][1] = 77
    check_rejected(ml("TreeEnsembleRegressor", attributes), [x], "node 77, which does not exist")
    attributes["nodes_truenodeids"][1] = 3
    attributes["nodes_featureids"][0] = 3
    check_rejected(ml("TreeEnsembleRegressor", attributes), [x], "use 4 features")
