"""Shapes that depend on values: inputs known only at run time, and outputs whose size depends on the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import (
    Array,
    Op,
    apart,
    check_forward,
    check_gradient,
    check_model,
    check_model_gradient,
    check_rejected,
    gradient_model,
    model_of,
    run,
    run_in_turn,
    run_model,
    uniform,
)
from onnx import TensorProto, helper

SPECIAL_POINTS = {"linear": ["Compress"]}


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


X = uniform(2, 3, 4, dtype=np.float32)

# Every input is an input of the model, so the values that determine shapes are not known in advance.
DECIDED_BY_INPUTS = [
    (Op("Reshape"), [X, ints(4, -1)]),
    (Op("Reshape", {"allowzero": 1}), [np.zeros((0, 3), np.float32), ints(3, 0)]),
    (Op("Squeeze"), [X[:, :1], ints(1)]),
    (Op("Unsqueeze"), [X, ints(0, -1)]),
    (Op("Expand"), [X[:1], ints(5, 3, 4)]),
    (Op("Tile"), [X, ints(1, 2, 3)]),
    (Op("Slice"), [X, ints(1, 0), ints(3, 4), ints(1, 2), ints(1, 2)]),
    (Op("Slice"), [X, ints(-1), ints(-5), ints(2), ints(-2)]),
    (Op("Split", outputs=2), [X, ints(1, 1)]),
    (Op("Pad"), [X, ints(0, 1, 0, 2, 0, 1), np.float32(3)]),
    (Op("Pad", {"mode": "reflect"}), [X, ints(0, 1, 2, 0, 0, 1)]),
    (Op("ReduceSum"), [X, ints(0, 2)]),
    (Op("ReduceSum", {"keepdims": 0}), [X, ints(1)]),
    (Op("ReduceMean", opset=18), [X, ints(-1)]),
    (Op("ReduceMax", {"keepdims": 0}, opset=18), [X, ints(0)]),
    (Op("ReduceL2", opset=18), [X, ints(0, 1)]),
    (Op("TopK", outputs=2), [apart(3, 5, dtype=np.float32), ints(2)]),
    (Op("OneHot"), [ints(0, 3, 1), np.int64(4), np.array([0, 5], np.float32)]),
    (Op("ConstantOfShape"), [ints(2, 0, 3)]),
    (Op("Range"), [np.float32(1), np.float32(9), np.float32(2.5)]),
    (Op("Range"), [np.int64(10), np.int64(2), np.int64(-3)]),
    (Op("CumSum"), [X, np.int64(1)]),
    (Op("Trilu"), [X, np.int64(-1)]),
    (Op("Resize", {"mode": "linear"}), [X[None], None, None, ints(1, 2, 5, 7)]),
    (Op("Resize"), [X[None], None, np.array([1, 1, 2, 0.5], np.float32)]),
    (Op("CenterCropPad", {"axes": [1, 2]}, opset=18), [X, ints(5, 2)]),
    (Op("HannWindow"), [np.int64(6)]),
]


@pytest.mark.parametrize(
    ("op", "inputs"), DECIDED_BY_INPUTS, ids=lambda v: str(v) if isinstance(v, Op) else ""
)
def test_values_that_decide_shapes_may_be_given_with_each_run(op: Op, inputs: Sequence[Array]) -> None:
    check_forward(op, inputs, rtol=1e-5)


def test_a_wrong_value_that_decides_a_shape_is_rejected_with_the_node() -> None:
    check_rejected(Op("Reshape"), [X, ints(5, 5)], "cannot be reshaped")
    check_rejected(Op("ReduceSum"), [X, ints(3)], "axis 3")


def test_the_same_session_takes_one_value_after_another() -> None:
    model = model_of(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[N] x, int64[R] shape) => (float y)
        {
          r = Reshape(x, shape)
          y = Add(r, r)
        }
        """
    )
    x = uniform(12, dtype=np.float32)
    shapes = [(3, 4), (2, 6), (3, 4), (12,), (2, 2, 3)] * 2
    results = run_in_turn(model, [{"x": x, "shape": ints(*shape)} for shape in shapes])
    for shape, result in zip(shapes, results, strict=True):
        np.testing.assert_array_equal(result["y"], 2 * x.reshape(shape))


def test_a_computed_value_decides_a_shape() -> None:
    # The number of rows is the largest label + 1; what follows uses the shape of the result.
    check_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (int64[N] labels, float[K] x) => (y, flat)
        <int64[1] one = {1}, float[2] values = {0, 1}, int64[1] minus = {-1}>
        {
          largest = ReduceMax<keepdims = 1>(labels)
          depth = Add(largest, one)
          classes = Squeeze(depth)
          hot = OneHot(labels, classes, values)
          size = Shape(hot)
          wide = Expand(x, size)
          y = Mul(hot, wide)
          flat = Reshape(y, minus)
        }
        """,
        [
            {"labels": ints(0, 2, 1), "x": uniform(3, dtype=np.float32)},
            {"labels": ints(4, 0), "x": uniform(5, dtype=np.float32)},
            {"labels": ints(0, 2, 1), "x": uniform(3, dtype=np.float32)},
        ],
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8, np.int64, np.uint16, bool])
@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 5), (0, 4), (1, 1)])
def test_nonzero(shape: tuple[int, ...], dtype: Any) -> None:
    x = (np.random.default_rng(1).integers(-1, 2, shape)).astype(dtype)
    check_forward(Op("NonZero"), [x], [np.array(np.nonzero(x), np.int64).reshape(len(shape), -1)])


def test_nonzero_of_negative_zero_and_of_scalars() -> None:
    x = np.array([-0.0, 0.0, np.nan, 1e-45], np.float32)
    check_forward(Op("NonZero"), [x], [np.array([[2, 3]])])
    found = run(Op("NonZero"), [np.array(3.0, np.float32)])[0]
    assert found.shape == (0, 1)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_compress_and_its_gradient(axis: int | None) -> None:
    x = uniform(3, 4, 2)
    length = x.size if axis is None else x.shape[axis]
    op = Op("Compress", {} if axis is None else {"axis": axis})
    for condition in (
        np.arange(length) % 2 == 1,
        np.zeros(length, bool),
        np.ones(max(length - 1, 1), bool),
    ):
        padded = np.append(condition, np.zeros(length - len(condition), bool))
        expected = x.ravel()[padded] if axis is None else np.compress(padded, x, axis)
        check_forward(op, [x, condition], [expected])
        if padded.any():
            check_gradient(op, [x, condition])


def test_compress_rejects_a_condition_that_is_too_long() -> None:
    check_rejected(Op("Compress", {"axis": 0}), [X, np.ones(3, bool)], "has 3 elements")


@pytest.mark.parametrize("sorted_", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8, np.float16])
def test_unique(dtype: Any, axis: int | None, sorted_: int) -> None:
    x = np.random.default_rng(2).integers(0, 3, (4, 3, 2)).astype(dtype)
    x[2] = x[0]
    x[:, 2] = x[:, 0]
    attributes = {"sorted": sorted_} | ({} if axis is None else {"axis": axis})
    expected = np.unique(x, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    y, indices, inverse, counts = [np.asarray(v) for v in expected]
    inverse = inverse.ravel()
    if not sorted_:
        order = np.argsort(indices)
        y, indices, counts = np.take(y, order, axis or 0), indices[order], counts[order]
        inverse = np.argsort(order)[inverse]
    check_forward(
        Op("Unique", attributes, outputs=4),
        [x],
        [y, *(v.astype(np.int64) for v in (indices, inverse, counts))],
    )


def test_unique_of_nothing() -> None:
    found = run(Op("Unique", outputs=4), [np.zeros((0,), np.float32)])
    assert [f.shape for f in found] == [(0,)] * 4


def test_non_max_suppression_of_several_images_and_classes() -> None:
    rng = np.random.default_rng(3)
    corner = rng.uniform(0, 1, (2, 12, 2)).astype(np.float32)
    boxes = np.concatenate([corner, corner + rng.uniform(0.1, 0.6, (2, 12, 2)).astype(np.float32)], 2)
    scores = rng.uniform(0, 1, (2, 3, 12)).astype(np.float32)
    inputs = [boxes, scores, ints(4), np.array([0.3], np.float32), np.array([0.2], np.float32)]
    check_forward(Op("NonMaxSuppression"), inputs)
    center = np.concatenate([(boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2]], 2)
    center = center[..., [1, 0, 3, 2]]
    check_forward(
        Op("NonMaxSuppression", {"center_point_box": 1}),
        [center, *inputs[1:]],
        run(Op("NonMaxSuppression"), inputs),
    )


MASKED = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (double[N, 4] x, double[4, 3] w) => (double loss)
    <double zero = {0}, int64[1] minus = {-1}, int64[1] axis = {0}>
    {
      h = MatMul(x, w)
      positive = Greater(h, zero)
      where = NonZero(positive)
      places = Transpose(where)
      chosen = GatherND(h, places)
      count = Shape(chosen)
      number = CastLike(count, chosen)
      square = Mul(chosen, chosen)
      sum = ReduceSum<keepdims = 0>(square, axis)
      scaled = Div(sum, number)
      loss = ReduceSum<keepdims = 0>(scaled)
    }
"""


def test_a_boolean_mask_inside_a_differentiated_model() -> None:
    for rows, seed in ((5, 1), (7, 2)):
        check_model_gradient(MASKED, {"x": uniform(rows, 4, seed=seed), "w": uniform(4, 3)}, ["x", "w"])


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        (Op("Reshape"), [uniform(2, 6), ints(3, 4)]),
        (Op("Expand"), [uniform(1, 4), ints(3, 4)]),
        (Op("Tile"), [uniform(2, 3), ints(2, 1)]),
        (Op("Slice"), [uniform(4, 5), ints(1), ints(4), ints(1), ints(2)]),
        (Op("Pad"), [uniform(2, 3), ints(0, 1, 2, 0)]),
        (Op("Pad", {"mode": "reflect"}), [uniform(3, 4), ints(2, 3, -1, 1)]),
        (Op("Pad", {"mode": "edge"}), [uniform(3, 4, 2), ints(0, 1, 0, 2, -2, 1)]),
        (Op("Pad", {"mode": "edge"}, opset=18), [uniform(3, 4, 2), ints(1, 2), None, ints(-2)]),
        (Op("Pad", {"mode": "wrap"}, opset=19), [uniform(3, 4), ints(2, 3, 5, 9)]),
        (Op("ReduceSum"), [uniform(3, 4), ints(1)]),
        (Op("ReduceSum", {"keepdims": 0}), [uniform(3, 4), ints(0)]),
        (Op("ReduceMean", {"keepdims": 0}, opset=18), [uniform(3, 4), ints(1)]),
        (Op("ReduceMax", {"keepdims": 0}, opset=18), [apart(3, 4), ints(1)]),
        (Op("ReduceProd", {"keepdims": 0}, opset=18), [uniform(3, 4), ints(1)]),
        (Op("ReduceL2", {"keepdims": 0}, opset=18), [uniform(3, 4), ints(1)]),
        (Op("ReduceLogSumExp", {"keepdims": 0}, opset=18), [uniform(3, 4), ints(0)]),
        (Op("Unsqueeze"), [uniform(3, 4), ints(1)]),
        (Op("Squeeze"), [uniform(3, 1, 4), ints(1)]),
        (Op("Split", outputs=2), [uniform(4, 3), ints(1, 3)]),
        (Op("TopK", outputs=(True, True)), [apart(3, 5), ints(2)]),
        (Op("CumSum"), [uniform(3, 4), np.int64(1)]),
        (Op("Resize", {"mode": "linear"}), [uniform(1, 1, 3, 4), None, None, ints(1, 1, 5, 6)]),
    ],
    ids=lambda v: str(v) if isinstance(v, Op) else "",
)
def test_gradients_where_an_input_decides_the_shape(op: Op, inputs: Sequence[Array]) -> None:
    check_gradient(op, inputs, wrt=[0])


# How PyTorch's TorchScript exporter writes the padding of the last axes of a tensor: it pads the list of pads
# with zeros for the other axes, and rearranges it from pairs in reverse order into all leading and then all trailing
# pads.
PADS_OF_TORCHSCRIPT = """
      asked = Constant<value = int64[4] {1, 2, 2, 1}>()
      whole = Cast<to = 7>(asked)
      zeros = ConstantOfShape<value = int64[1] {0}>(missing)
      all = Concat<axis = 0>(whole, zeros)
      in_pairs = Constant<value = int64[2] {-1, 2}>()
      pairs = Reshape(all, in_pairs)
      last = Constant<value = int64[1] {-1}>()
      first = Constant<value = int64[1] {0}>()
      end = Constant<value = int64[1] {-9223372036854775807}>()
      turned = Slice(pairs, last, end, first, last)
      columns = Transpose<perm = [1, 0]>(turned)
      flat = Reshape(columns, last)
      pads = Cast<to = 7>(flat)
"""
MISSING_PADS = {
    "a constant": "missing = Constant<value = int64[1] {4}>()",
    "the rank": """
      dims = Shape(x)
      rank = Size(dims)
      two = Constant<value = int64 {2}>()
      entries = Mul(rank, two)
      given = Constant<value = int64[1] {4}>()
      missing = Sub(entries, given)
    """,
    "an input": "missing = Identity(count)",
}


def padded_model(mode: str, missing: str, dims: str) -> str:
    pads = MISSING_PADS[missing] + PADS_OF_TORCHSCRIPT
    return f"""
    <ir_version: 9, opset_import: ["" : 19]>
    g (double[{dims}] given_x, double[2, 3, 7, 7] weights, int64[1] count, int64[4] shape) => (double loss)
    {{
      x = {"Reshape(given_x, shape)" if dims == "K" else "Identity(given_x)"}
      {pads}
      padded = Pad<mode = "{mode}">(x, pads)
      weighted = Mul(padded, weights)
      square = Mul(weighted, padded)
      loss = ReduceSum<keepdims = 0>(square)
    }}
    """


@pytest.mark.parametrize("missing", MISSING_PADS)
@pytest.mark.parametrize(
    ("mode", "dims"),
    [
        *((mode, dims) for mode in ("edge", "reflect", "wrap") for dims in ("2, 3, 4, 4", "N, 3, H, W")),
        ("reflect", "K"),  # reshaped to a tensor of unknown rank
    ],
)
def test_pads_that_torchscript_computes_have_gradients(mode: str, missing: str, dims: str) -> None:
    model = padded_model(mode, missing, dims)
    x = uniform(2, 3, 4, 4)
    feeds = {
        "given_x": x.ravel() if dims == "K" else x,
        "weights": uniform(2, 3, 7, 7, seed=2),
        "count": ints(4),
        "shape": ints(*x.shape),
    }
    check_model(model, [feeds])
    check_model_gradient(model, feeds, ["given_x", "weights"])
    # Pads that follow from constants are folded: the gradient goes axis by axis, without an index for each element.
    graph = onnx.load_from_string(gradient_model(model_of(model), ["given_x"], "loss")).graph
    axes = [helper.get_node_attr_value(n, "axis") for n in graph.node if n.op_type == "GatherGrad"]
    assert axes == ([0] if missing == "an input" or dims == "K" else [2, 3])


def test_pads_without_an_entry_for_every_axis_are_rejected_by_the_gradient() -> None:
    text = """
    <ir_version: 9, opset_import: ["" : 19]>
    g (double[2, 3] x, double[2] y) => (double loss)
    {
      pads = Constant<value = int64[2] {1, 1}>()
      padded = Pad<mode = "edge">(x, pads)
      loss = ReduceSum<keepdims = 0>(padded)
    }
    """
    with pytest.raises(RuntimeError, match="must have two entries for each of 2 axes"):
        gradient_model(model_of(text), ["x"], "loss")


def test_a_value_that_only_a_kernel_wants_is_found_while_the_model_runs() -> None:
    # The start of the range is computed; its length follows from it.
    node = [
        helper.make_node("ReduceSum", ["x"], ["start"], keepdims=0),
        helper.make_node("Range", ["start", "limit", "delta"], ["y"]),
    ]
    graph = helper.make_graph(
        node,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.INT64, [3]),
            helper.make_tensor_value_info("limit", TensorProto.INT64, []),
            helper.make_tensor_value_info("delta", TensorProto.INT64, []),
        ],
        [onnx.ValueInfoProto(name="y")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    result = run_model(
        model.SerializeToString(), {"x": ints(1, 1, 2), "limit": np.int64(9), "delta": np.int64(2)}
    )
    np.testing.assert_array_equal(result["y"], [4, 6, 8])
