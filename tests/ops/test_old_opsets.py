"""Operators in the forms that they had before version 12, against stock onnxruntime."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pytest
from helpers import Array, Op, check_forward, check_gradient, check_rejected, make_model, run, uniform

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
    # The loss after the operator is of the same version.
    check_gradient(op, doubles, wrt=wrt, outputs=[0], constants=constants)


B = uniform(3, seed=1, low=0.5, dtype=np.float32)
# The inputs of the older definition: input 1 is then reshaped to what a newer one accepts.
BEFORE_7: list[tuple[str, dict[str, Any], Sequence[Array], int]] = [
    ("Add", {"broadcast": 1}, [X, X[0, 0]], 6),
    ("Add", {"broadcast": 1, "axis": 1}, [X, B], 6),
    ("Sub", {"broadcast": 1, "axis": -2}, [X, B], 1),
    ("Mul", {"broadcast": 1, "axis": 0}, [X, X[:, :, 0]], 6),
    ("Mul", {"broadcast": 1, "axis": 0}, [X, X[:, :1]], 6),
    ("Div", {"broadcast": 1, "axis": 0}, [X, B[:2]], 6),
    ("Pow", {"broadcast": 1, "axis": 1}, [X + 2, B], 1),
    ("PRelu", {}, [X, B], 6),
    ("PRelu", {}, [X, B[:1]], 6),
]


def stands_at(kind: str, attributes: dict[str, Any], a: Array, b: Array) -> Array:
    axis = attributes.get("axis", 1 if kind == "PRelu" and b.size > 1 else a.ndim - b.ndim) % a.ndim
    return b.reshape(b.shape + (1,) * (a.ndim - axis - b.ndim))


@pytest.mark.parametrize(("kind", "attributes", "inputs", "opset"), BEFORE_7)
def test_the_second_operand_stood_at_an_axis(
    kind: str, attributes: dict[str, Any], inputs: Sequence[Array], opset: int
) -> None:
    a, b = (np.asarray(x, np.float64) for x in inputs)
    (expected,) = run(Op(kind), [a, stands_at(kind, attributes, a, b)])
    op = Op(kind, attributes, opset=opset)
    check_forward(op, [a, b], [expected])
    check_gradient(op, [a, b])


@pytest.mark.parametrize("kind", ["Less", "Greater", "Equal", "And", "Or", "Xor"])
def test_comparisons_stood_at_an_axis_too(kind: str) -> None:
    a, b = (X > 0, B > 0.7) if kind in ("And", "Or", "Xor") else (X, B)
    a, b = (np.rint(4 * v).astype(np.int32) if kind == "Equal" else v for v in (a, b))
    (expected,) = run(Op(kind), [a, b[:, None]])
    check_forward(Op(kind, {"broadcast": 1, "axis": 1}, opset=6), [a, b], [expected])


def test_other_definitions_before_version_7() -> None:
    image = [IMAGE, *CHANNELS]
    check_forward(
        Op("BatchNormalization", {"is_test": 1}, opset=6), image, run(Op("BatchNormalization"), image)
    )
    gemm = [X[0], X[1].T, B]
    check_forward(Op("Gemm", {"broadcast": 1}, opset=6), gemm, run(Op("Gemm"), gemm))
    check_forward(Op("Dropout", {"is_test": 1}, opset=6), [X], [X])
    check_forward(Op("Concat", opset=1), [X, X], [np.concatenate([X, X], axis=1)])
    check_gradient(Op("Concat", opset=1), [X.astype(np.float64), X.astype(np.float64)])
    padded = Op("Pad", {"paddings": [0, 1, 0, 0, 0, 2]}, opset=1)
    check_forward(padded, [X], [np.pad(X, [(0, 0), (1, 0), (0, 2)])])
    check_gradient(padded, [X.astype(np.float64)])
    check_rejected(Op("Dropout", opset=6), [X], "opset 6 Dropout is supported for inference only")
    check_rejected(Op("Add", {"broadcast": 1, "axis": 2}, opset=6), [X, X[0]], "does not fit axis 2")


@pytest.mark.parametrize(
    ("kind", "attributes", "opset", "since"),
    [
        ("Cast", {"to": 1}, 5, 6),
        ("LpPool", {"kernel_shape": [2]}, 1, 2),
        ("GlobalLpPool", {}, 1, 2),
        ("Selu", {}, 5, 6),
        ("Tile", {}, 5, 6),
        ("Upsample", {}, 6, 7),
    ],
)
def test_definitions_that_are_not_carried_are_rejected_by_name(
    kind: str, attributes: dict[str, Any], opset: int, since: int
) -> None:
    with pytest.raises(
        RuntimeError, match=f"under_test.*{kind}.*opset {opset}; it is supported from opset {since}"
    ):
        run(Op(kind, attributes, opset=opset), [X, X])


@pytest.mark.parametrize("kind", ["Not", "Relu", "Exp", "Identity", "Transpose", "MatMul", "Softmax"])
def test_definitions_that_never_changed_are_carried_from_the_first_version(kind: str) -> None:
    inputs = [X[0] > 0] if kind == "Not" else [X[0], X[0].T] if kind == "MatMul" else [X[0]]
    (expected,) = run(Op(kind, opset=12), inputs)
    check_forward(Op(kind, opset=1), inputs, [expected])
