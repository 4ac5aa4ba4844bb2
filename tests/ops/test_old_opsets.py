"""Operators in the form that they had before version 12, against stock onnxruntime."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest
from helpers import Array, Op, check_forward, check_gradient, make_model, run, uniform

X = uniform(2, 3, 4, dtype=np.float32)
IMAGE = uniform(1, 2, 4, 6, dtype=np.float32)
CHANNELS = [uniform(2, low=0.5, seed=k, dtype=np.float32) for k in range(4)]


def ints(*values: int) -> Array:
    return np.array(values)


# Operator, attributes, inputs, which of them are initializers, versions
Case = tuple[str, dict[str, Any], Sequence[Array], Collection[int], Sequence[int]]
CASES: list[Case] = [
    ("Add", {}, [X, X[:, :1]], (), [7, 9]),
    ("AveragePool", {"kernel_shape": [2, 2], "count_include_pad": 1}, [IMAGE], (), [7, 10, 11]),
    ("BatchNormalization", {}, [IMAGE, *CHANNELS], (), [7, 9, 10]),
    ("Clip", {"min": -0.2}, [X], (), [7, 10]),
    ("Clip", {"min": -0.5, "max": 0.3}, [X], (), [7, 10]),
    ("Clip", {}, [X, np.float32(-0.2)], (1,), [11]),
    ("Dropout", {"ratio": 0.3}, [X], (), [7, 10]),
    ("Gemm", {"transB": 1}, [X[0], X[1], np.zeros(3, np.float32)], (), [7, 9, 11]),
    ("Hardmax", {"axis": 1}, [X], (), [7, 11]),
    ("LogSoftmax", {}, [X], (), [7, 11]),
    ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}, [IMAGE], (), [7, 8, 10, 11]),
    ("OneHot", {}, [ints(0, 2, 1), ints(4)[0], np.float32([0, 1])], (1,), [9, 11]),
    ("PRelu", {}, [X, np.float32([0.3])], (), [7, 9]),
    ("Pad", {"pads": [0, 1, 0, 2, 0, 1], "value": 1.5}, [X], (), [7, 10]),
    ("Pad", {"pads": [0, 1, 0, 1, 0, 1], "mode": "reflect"}, [X], (), [7, 10]),
    ("ReduceMean", {"axes": [1], "keepdims": 0}, [X], (), [7, 11]),
    ("ReduceSum", {"axes": [0, 2]}, [X], (), [7, 11]),
    ("Reshape", {}, [X, ints(0, -1)], (1,), [7]),
    ("Resize", {"mode": "nearest"}, [IMAGE, np.float32([1, 1, 2, 3])], (1,), [10]),
    ("Resize", {"mode": "linear"}, [IMAGE, np.float32([1, 1, 1.6, 0.7])], (1,), [10]),
    ("Resize", {"mode": "nearest"}, [IMAGE, np.float32([1, 1, 0.6, 0.6])], (1,), [10]),
    ("Scatter", {"axis": 1}, [X[0], ints(1, 0, 2)[None], X[1, :1, :3]], (), [9]),
    ("Slice", {"starts": [1, 0], "ends": [3, -1], "axes": [1, 2]}, [X], (), [7, 9]),
    ("Slice", {}, [X, ints(1), ints(5), ints(2), ints(2)], (1, 2, 3, 4), [10, 11]),
    ("Softmax", {"axis": 1}, [X], (), [7, 11]),
    ("Softmax", {}, [X], (), [7, 11]),
    ("Split", {"axis": 2, "split": [4]}, [X], (), [7, 11]),
    ("Squeeze", {"axes": [0]}, [X[:1]], (), [7, 11]),
    ("TopK", {"k": 2}, [X], (), [7]),
    ("TopK", {}, [X, ints(2)], (1,), [10, 11]),
    ("Unsqueeze", {"axes": [0, 2]}, [X], (), [7, 11]),
    ("Upsample", {"scales": [1.0, 1.0, 2.0, 2.0], "mode": "nearest"}, [IMAGE], (), [7]),
    ("Upsample", {"mode": "linear"}, [IMAGE, np.float32([1, 1, 2, 2])], (1,), [9]),
]
FLAT = [(case, opset) for case in CASES for opset in case[4]]


@pytest.mark.parametrize(("case", "opset"), FLAT, ids=[f"{c[0]}-{v}-{i}" for i, (c, v) in enumerate(FLAT)])
def test_old_forms_agree_with_onnxruntime(case: Case, opset: int) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    kind, attributes, inputs, constants, _ = case
    op = Op(kind, attributes, opset=opset, outputs=2 if kind == "TopK" else 1)
    model = make_model(op, inputs, constants=constants).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options)
    expected = session.run(None, {f"x{i}": x for i, x in enumerate(inputs) if i not in constants})
    check_forward(op, inputs, expected, rtol=1e-6, constants=constants)
    floating = [i for i, x in enumerate(inputs) if x.dtype == np.float32 and i not in constants]
    # Statistics are constants of training.
    wrt = [i for i in floating if kind != "BatchNormalization" or i < 3]
    if kind in ("Hardmax", "OneHot"):
        return
    doubles = [x.astype(np.float64) if i in floating else x for i, x in enumerate(inputs)]
    if kind in ("BatchNormalization", "Clip"):
        doubles = [x.astype(np.float64) for x in inputs]
    # The loss behind the operator is of the same version.
    check_gradient(op, doubles, wrt=wrt, outputs=[0], constants=constants)


@pytest.mark.parametrize(
    ("kind", "attributes", "opset", "since"),
    [
        ("Add", {"broadcast": 1}, 6, 7),
        ("And", {}, 6, 7),
        ("BatchNormalization", {}, 6, 7),
        ("Cast", {"to": 1}, 5, 6),
        ("Concat", {}, 3, 4),
        ("Dropout", {}, 6, 7),
        ("Gemm", {}, 6, 7),
        ("LSTM", {"hidden_size": 2}, 6, 7),
        ("LpPool", {"kernel_shape": [2]}, 1, 2),
        ("PRelu", {}, 6, 7),
        ("Pad", {"paddings": [1]}, 1, 2),
        ("Pow", {}, 6, 7),
        ("Selu", {}, 5, 6),
        ("Split", {}, 1, 2),
        ("Tile", {}, 5, 6),
        ("Upsample", {}, 6, 7),
    ],
)
def test_definitions_that_are_not_carried_are_refused_by_name(
    kind: str, attributes: dict[str, Any], opset: int, since: int
) -> None:
    with pytest.raises(
        RuntimeError, match=f"under_test.*{kind}.*opset {opset}; it is known from opset {since}"
    ):
        run(Op(kind, attributes, opset=opset), [X, X])


@pytest.mark.parametrize("kind", ["Not", "Relu", "Exp", "Identity", "Transpose", "MatMul", "Softmax"])
def test_definitions_that_never_changed_are_carried_from_the_first_version(kind: str) -> None:
    inputs = [X[0] > 0] if kind == "Not" else [X[0], X[0].T] if kind == "MatMul" else [X[0]]
    (expected,) = run(Op(kind, opset=12), inputs)
    check_forward(Op(kind, opset=1), inputs, [expected])
