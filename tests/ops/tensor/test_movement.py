"""Operators that create, reshape, move, join, split, repeat and pad tensors, against onnx and finite differences."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import (
    MICROSOFT,
    Array,
    Op,
    apart,
    check_forward,
    check_gradient,
    check_rejected,
    gradient_model,
    make_model,
    run,
    run_model,
    uniform,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

# The operators of this file, and which of their inputs determine the shape of the result (constants here).
SHAPE_INPUTS: dict[str, tuple[int, ...]] = {
    "Concat": (),
    "Constant": (),
    "ConstantOfShape": (0,),
    "CumSum": (),
    "DepthToSpace": (),
    "Expand": (1,),
    "EyeLike": (),
    "Flatten": (),
    "Gather": (),
    "GatherElements": (),
    "GatherND": (),
    "Identity": (),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "ScatterElements": (),
    "ScatterND": (),
    "Shape": (),
    "Size": (),
    "Slice": (1, 2, 3, 4),
    "SpaceToDepth": (),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Transpose": (),
    "Trilu": (),
    "Unsqueeze": (1,),
}


@cache
def onnx_cases() -> list[Any]:
    """The node cases of the onnx package for the operators above, over tensors that NumPy can hold."""
    from onnx.backend.test.case.node import collect_testcases

    def fits(case: Any) -> bool:
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].op_type not in SHAPE_INPUTS or nodes[0].domain not in ("", "ai.onnx"):
            return False
        values = [*case.model.graph.input, *case.model.graph.output]
        return all(
            v.type.HasField("tensor_type") and v.type.tensor_type.elem_type in TENSOR_TYPES for v in values
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return [case for case in collect_testcases(None) if fits(case)]


TENSOR_TYPES = {
    helper.np_dtype_to_tensor_dtype(np.dtype(t))
    for t in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}


@pytest.mark.parametrize("case", onnx_cases(), ids=lambda case: case.name)
def test_agrees_with_the_node_cases_of_onnx(case: Any) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    node = model.graph.node[0]
    constant_names = {node.input[i] for i in SHAPE_INPUTS[node.op_type] if i < len(node.input)}
    for inputs, outputs in case.data_sets:
        feeds = {v.name: np.asarray(x) for v, x in zip(case.model.graph.input, inputs, strict=True)}
        del model.graph.input[:]
        del model.graph.initializer[:]
        for value in case.model.graph.input:
            if value.name in constant_names:
                model.graph.initializer.append(numpy_helper.from_array(feeds.pop(value.name), value.name))
            else:
                model.graph.input.append(value)
        found = run_model(model.SerializeToString(), feeds)
        for value, expected in zip(case.model.graph.output, outputs, strict=True):
            assert found[value.name].dtype == expected.dtype
            np.testing.assert_allclose(found[value.name], expected, case.rtol, case.atol)
            assert found[value.name].shape == expected.shape


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def pair(op_type: str, x: Array, *constants: Array | None, opset: int = 17, **attributes: Any) -> Any:
    """An operator with its first input and the constants that follow."""
    return Op(op_type, attributes, opset=opset), [x, *constants], tuple(range(1, 1 + len(constants)))


X = uniform(2, 3, 4, 5)

FORWARD = [
    # every way through the strided copy: runs, tiles with and without remainders, elements, two-fold widths
    *[
        pair("Transpose", uniform(*shape, dtype=dtype), perm=perm)
        for shape, perm in [
            ((33, 65), [1, 0]),
            ((64, 64), [1, 0]),
            ((1, 7), [1, 0]),
            ((3, 17, 5, 8), [0, 2, 1, 3]),
            ((3, 17, 5, 19), [0, 2, 3, 1]),
            ((2, 16, 4, 16), [0, 2, 3, 1]),
            ((3, 17, 5, 19), [0, 3, 1, 2]),
            ((5, 6, 7), [2, 1, 0]),
            ((5, 6, 7), [1, 2, 0]),
            ((4, 5, 6, 2), [3, 0, 2, 1]),
            ((4, 5, 6, 2), [2, 1, 0, 3]),
            ((2, 3, 2, 3, 2, 3), [5, 3, 1, 0, 2, 4]),
            ((1, 5, 1, 3), [2, 1, 0, 3]),
            ((0, 3), [1, 0]),
            ((1,), [0]),
        ]
        for dtype in (np.float32, np.float64)
    ],
    *[
        pair("Transpose", (np.arange(70 * 33) % 251).astype(dtype).reshape(70, 33), perm=[1, 0])
        for dtype in (np.bool_, np.int8, np.uint16, np.float16, np.int32, np.uint64)
    ],
    pair("Transpose", uniform(300, 700, dtype=np.float32), perm=[1, 0]),  # large enough for threads
    pair("Transpose", uniform(8, 64, 4, 64, dtype=np.float32), perm=[0, 2, 3, 1]),
    pair("Transpose", X),
    pair("Transpose", np.array(3.0)),
    pair("Reshape", X, ints(0, -1, 10)),
    pair("Reshape", X, ints(120)),
    pair("Reshape", uniform(0, 4), ints(0, 2, 2)),
    pair("Reshape", uniform(0, 4), ints(3, 0), allowzero=1),
    pair("Reshape", uniform(1), ints()),
    pair("Flatten", X, axis=2),
    pair("Flatten", X, axis=-1),
    pair("Flatten", X, axis=0),
    pair("Flatten", X, axis=4),
    pair("Flatten", uniform(0, 3)),
    pair("Squeeze", uniform(1, 3, 1, 2), opset=12, axes=[0, -2]),
    pair("Squeeze", uniform(1, 3, 1, 2), opset=12),
    pair("Squeeze", uniform(1, 3, 1, 2), ints(-2)),
    pair("Squeeze", uniform(1, 1)),
    pair("Unsqueeze", uniform(3, 2), opset=12, axes=[0, 3]),
    pair("Unsqueeze", uniform(3, 2), ints(-1, 0, 2)),
    pair("Unsqueeze", np.array(2.0), ints(0)),
    pair("Unsqueeze", uniform(1, 0), ints(1)),
    pair("Shape", X, start=1, end=-1),
    pair("Shape", X, start=-2),
    pair("Shape", X, start=-9, end=9),
    pair("Shape", X, start=3, end=1),
    pair("Shape", np.array(1.0)),
    pair("Size", X),
    pair("Size", uniform(0, 3)),
    pair("Split", X, axis=1),
    pair("Expand", uniform(3, 1), ints(2, 3, 4)),
    pair("Expand", uniform(3, 1), ints(1, 1)),
    pair("Expand", uniform(1, 3, 1, 5), ints(4, 3, 2, 5)),
    pair("Expand", np.array(2.0), ints(2, 3)),
    pair("Expand", uniform(3, 1), ints(3, 0)),
    pair("Expand", uniform(1, 600, dtype=np.float32), ints(300, 600)),
    pair("Tile", uniform(2, 3), ints(2, 1)),
    pair("Tile", uniform(2, 3), ints(1, 4)),
    pair("Tile", uniform(2, 3, 4), ints(3, 2, 5)),
    pair("Tile", uniform(2, 3), ints(0, 2)),
    pair("Tile", uniform(0, 3), ints(2, 2)),
    pair("Tile", uniform(5), ints(1)),
    pair("Slice", X, ints(1), ints(3), ints(1)),
    pair("Slice", X, ints(-2, 0), ints(9999, -1), ints(-1, 0)),
    pair("Slice", X, ints(-1, 3), ints(-9999, 0), ints(3, 2), ints(-1, -2)),
    pair("Slice", X, ints(0, 1), ints(2, 3)),
    pair("Slice", X, ints(3), ints(1), ints(2)),
    pair("Slice", X, ints(0), ints(np.iinfo(np.int64).max), ints(3), ints(2)),
    pair("Slice", X, ints(4), ints(np.iinfo(np.int64).min), ints(3), ints(-3)),
    pair("Slice", X, ints(0), ints(4), ints(2), ints(np.iinfo(np.int64).max)),
    pair("Slice", uniform(0, 3), ints(0), ints(5), ints(0), ints(-1)),
    pair(
        "Slice",
        X.astype(np.float32),
        np.array([1], np.int32),
        np.array([3], np.int32),
        np.array([2], np.int32),
    ),
    pair("Pad", X, ints(0, 1, 0, 2, 1, 0, 0, 3), np.array(0.5)),
    pair("Pad", X, ints(0, 1, 0, -1, 0, 0, -2, 3)),
    pair("Pad", uniform(2, 0), ints(1, 1, 0, 2), np.array(7.0)),
    pair("Pad", np.arange(6, dtype=np.int32).reshape(2, 3), ints(0, 2, 1, 0), np.array(9, np.int32)),
    pair("Pad", uniform(3, 4), ints(2, 3, 1, 1), mode="reflect"),
    pair("Pad", uniform(3, 4), ints(2, 3, 1, 1), mode="edge"),
    pair("Pad", uniform(3, 4), ints(2, 3, 5, 9), mode="wrap", opset=19),
    pair("Pad", uniform(3, 4, 2), ints(1, 2), None, ints(-2), mode="edge", opset=18),
    pair("Pad", uniform(3, 4, 2), ints(1, 2, 3, 4), np.array(2.0), ints(2, 0), opset=18),
    pair("Pad", uniform(3), ints(0, 0)),
    pair("CumSum", X, np.array(1), exclusive=1),
    pair("CumSum", X, np.array(-1), reverse=1),
    pair("CumSum", X, np.array(0, np.int32), exclusive=1, reverse=1),
    pair("CumSum", np.arange(5), np.array(0)),
    pair("CumSum", uniform(0, 3), np.array(0)),
    pair("DepthToSpace", uniform(2, 12, 3, 2), blocksize=2),
    pair("DepthToSpace", uniform(2, 18, 1, 2), blocksize=3, mode="CRD"),
    pair("SpaceToDepth", uniform(1, 3, 4, 6), blocksize=2),
    pair("SpaceToDepth", uniform(0, 3, 4, 6), blocksize=2),
    pair("EyeLike", uniform(3, 4), k=1),
    pair("EyeLike", uniform(3, 4), k=-2, dtype=onnx.TensorProto.INT32),
    pair("EyeLike", uniform(3, 4), k=9),
    pair("Identity", X),
    pair("TopK", apart(3, 7), ints(3), axis=1),
    *[
        (Op("TopK", {"axis": axis, "largest": largest}, outputs=2), [apart(4, 6, 5), ints(3)], (1,))
        for axis in (0, 1, -1)
        for largest in (0, 1)
    ],
    (Op("TopK", outputs=2), [np.array([[2, 2, 1, 3, 3, 3]], np.int32), ints(5)], (1,)),
    (Op("TopK", outputs=2), [apart(2, 3), ints(0)], (1,)),
    (Op("TopK", outputs=2), [uniform(40, 3000, dtype=np.float32), ints(7)], (1,)),
    (Op("OneHot"), [np.array([[0, 3, -1], [4, -4, 9]]), np.array(4), np.array([0.5, 2.0])], (1,)),
    (Op("OneHot", {"axis": 0}), [np.array([1, 2, 0]), np.array([3.0]), np.array([0, 1])], (1,)),
    (Op("OneHot", {"axis": 1}), [np.zeros((2, 0), np.int32), np.array(3), np.array([False, True])], (1,)),
    (Op("Concat", {"axis": 1}), [uniform(2, 3, 2), uniform(2, 1, 2), uniform(2, 0, 2), uniform(2, 4, 2)], ()),
    (Op("Concat", {"axis": -1}), [uniform(2, 3), uniform(2, 2)], ()),
    (Op("Concat", {"axis": 0}), [uniform(2, 3)], ()),
    (Op("Concat", {"axis": 0}), [np.array([True]), np.array([False, True])], ()),
    (
        Op("Concat", {"axis": 1}),
        [uniform(300, 200, dtype=np.float32), uniform(300, 500, dtype=np.float32)],
        (),
    ),
    (Op("Split", {"axis": 1}, outputs=3, opset=12), [uniform(2, 6)], ()),
    (Op("Split", {"axis": -1, "split": [1, 0, 4]}, outputs=3, opset=12), [uniform(2, 5)], ()),
    (Op("Split", {"axis": 0}, outputs=2), [uniform(5, 2), ints(2, 3)], (1,)),
    (Op("Split", {"axis": 1, "num_outputs": 3}, outputs=3, opset=18), [uniform(2, 7)], ()),
    (Op("Split", {"axis": 0, "num_outputs": 1}, outputs=1, opset=18), [uniform(3)], ()),
    (Op("Range"), [np.array(1.5), np.array(-2.0), np.array(-0.75)], (0, 1, 2)),
    (Op("Range"), [np.array(3), np.array(3), np.array(2)], (0, 1, 2)),
    (Op("Range"), [np.array(0, np.int32), np.array(9, np.int32), np.array(2, np.int32)], (0, 1, 2)),
    (Op("Range"), [np.array(0), np.array(9), np.array(-2)], (0, 1, 2)),
    (Op("Constant", {"value_ints": [1, 2, 3]}), [], ()),
    (Op("Constant", {"value_int": 4}), [], ()),
    (Op("Constant", {"value_float": 0.5}), [], ()),
    (Op("Constant", {"value_floats": [0.5, 1.5]}), [], ()),
    (Op("Constant", {"value": numpy_helper.from_array(uniform(2, 2))}), [], ()),
    (Op("ConstantOfShape"), [ints(2, 3)], (0,)),
    (Op("ConstantOfShape", {"value": numpy_helper.from_array(ints(7))}), [ints(2, 0)], (0,)),
    (Op("ConstantOfShape", {"value": numpy_helper.from_array(np.array([True]))}), [ints(3)], (0,)),
    (Op("ConstantOfShape", {"value": numpy_helper.from_array(np.array([2.5]))}), [ints()], (0,)),
]


@pytest.mark.parametrize(("op", "inputs", "constants"), FORWARD, ids=lambda value: str(value)[:60])
def test_forward(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_forward(op, inputs, expected=numpy_answer(op, inputs), constants=constants)


def numpy_answer(op: Op, inputs: list[Array | None]) -> list[Any] | None:
    """The result of NumPy if the reference evaluator is known to be wrong or to fail; otherwise None."""
    x = inputs[0] if inputs else None
    if op.type == "EyeLike" and x is not None:
        dtype = helper.tensor_dtype_to_np_dtype(
            op.attributes.get("dtype", helper.np_dtype_to_tensor_dtype(x.dtype))
        )
        return [np.eye(x.shape[0], x.shape[1], k=op.attributes["k"], dtype=dtype)]
    if op.type == "Flatten" and x is not None and x.size == 0:
        axis = op.attributes.get("axis", 1)
        return [x.reshape(int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:])))]
    if op.type == "Pad" and x is not None and (np.asarray(inputs[1]) < 0).any() and len(inputs) == 2:
        before, after = np.asarray(inputs[1]).reshape(2, -1)
        kept = x[
            tuple(slice(max(0, -b), n + min(0, a)) for b, a, n in zip(before, after, x.shape, strict=True))
        ]
        return [np.pad(kept, np.maximum(0, [before, after]).T, mode=op.attributes.get("mode", "constant"))]
    if op.type == "OneHot" and x is not None:
        depth, (off, on) = int(np.ravel(inputs[1])[0]), np.asarray(inputs[2])  # type: ignore[arg-type]
        axis = op.attributes.get("axis", -1)
        hit = np.expand_dims(np.where(x < 0, x + depth, x), axis)
        places = np.arange(depth).reshape([-1 if i == axis % (x.ndim + 1) else 1 for i in range(x.ndim + 1)])
        return [np.where(hit == places, on, off).astype(np.asarray(inputs[2]).dtype)]
    if op.type == "TopK" and x is not None:
        axis, k = op.attributes.get("axis", -1), int(np.ravel(inputs[1])[0])  # type: ignore[arg-type]
        order = np.argsort(-x if op.attributes.get("largest", 1) else x, axis=axis, kind="stable")
        order = np.take(order, np.arange(k), axis=axis)
        return [np.take_along_axis(x, order, axis), order][: 2 if op.outputs == 2 else 1]
    if op.type == "CumSum" and x is not None:
        axis = int(inputs[1])  # type: ignore[arg-type]
        y = np.flip(x, axis) if op.attributes.get("reverse") else x
        sums = np.cumsum(y, axis=axis, dtype=x.dtype) - (y if op.attributes.get("exclusive") else 0)
        return [np.flip(sums, axis) if op.attributes.get("reverse") else sums]
    return None


def sliced(x: Array, starts: list[int], ends: list[int], axes: list[int], steps: list[int]) -> Any:
    return Op("Slice"), [x, ints(*starts), ints(*ends), ints(*axes), ints(*steps)], (1, 2, 3, 4)


GRADIENTS = [
    pair("Identity", uniform(2, 3)),
    pair("Transpose", uniform(2, 3, 4), perm=[2, 0, 1]),
    pair("Transpose", uniform(2, 3, 2)),
    pair("Transpose", uniform(0, 3), perm=[1, 0]),
    pair("Reshape", uniform(2, 6), ints(3, -1)),
    pair("Reshape", uniform(0, 3), ints(3, 0), allowzero=1),
    pair("Reshape", uniform(2, 3), ints(6), opset=12),
    pair("Flatten", uniform(2, 3, 2), axis=-1),
    pair("Squeeze", uniform(1, 3, 1), ints(0)),
    pair("Squeeze", uniform(1, 1)),
    pair("Squeeze", uniform(1, 3, 1), opset=12, axes=[2]),
    pair("Unsqueeze", uniform(3), ints(0, -1)),
    pair("Unsqueeze", uniform(3), opset=12, axes=[1]),
    (Op("Concat", {"axis": 1}), [uniform(2, 1), uniform(2, 3), uniform(2, 0)], ()),
    (Op("Concat", {"axis": -2}, opset=12), [uniform(1, 2), uniform(3, 2)], ()),
    (Op("Concat", {"axis": 0}), [uniform(3)], ()),
    (Op("ConcatTraining", {"axis": 1}, MICROSOFT, outputs=(True,)), [uniform(2, 1), uniform(2, 3)], ()),
    (Op("Split", {"axis": 1}, outputs=2), [uniform(2, 5), ints(2, 3)], (1,)),
    (Op("Split", {"axis": 0, "num_outputs": 3}, outputs=3, opset=18), [uniform(7, 2)], ()),
    (Op("Split", {"axis": 0}, outputs=2, opset=12), [uniform(4)], ()),
    (Op("SplitTraining", {"axis": -1}, MICROSOFT, outputs=2), [uniform(2, 5), ints(4, 1)], (1,)),
    sliced(uniform(4, 5), [1, -2], [4, -9], [0, 1], [2, -1]),
    sliced(uniform(4, 5), [3], [3], [0], [1]),
    sliced(uniform(4, 5), [0], [4], [0], [1]),
    sliced(uniform(0, 5), [0], [3], [1], [1]),
    (Op("Slice"), [uniform(4, 5), ints(1, 2), ints(3, 5)], (1, 2)),
    pair("Expand", uniform(3, 1), ints(2, 3, 4)),
    pair("Expand", uniform(3, 1), ints(3, 1)),
    pair("Expand", np.array(0.5), ints(2, 2)),
    pair("Expand", uniform(1, 3), ints(0, 3)),
    pair("Tile", uniform(2, 3), ints(3, 2)),
    pair("Tile", uniform(2, 3), ints(1, 2), opset=12),
    pair("Tile", uniform(2, 3), ints(2, 0)),
    pair("Tile", uniform(4), ints(1)),
    pair("Pad", uniform(2, 3), ints(1, 0, 2, 3)),
    pair("Pad", uniform(4, 3), ints(-1, 0, 2, -2)),
    pair("Pad", uniform(4, 3), ints(1, 2), None, ints(-1), opset=18),
    pair("Pad", uniform(4, 3), ints(2, 1, 3, 2), mode="reflect"),
    pair("Pad", uniform(4, 3), ints(2, 1, 0, -1), mode="edge"),
    pair("Pad", uniform(2, 3), ints(5, 4), None, ints(1), mode="wrap", opset=19),
    pair("CumSum", uniform(2, 3, 2), np.array(1), exclusive=1),
    pair("CumSum", uniform(4), np.array(0), reverse=1),
    pair("DepthToSpace", uniform(1, 8, 2, 1), blocksize=2),
    pair("DepthToSpace", uniform(1, 8, 2, 1), blocksize=2, mode="CRD"),
    pair("SpaceToDepth", uniform(1, 2, 4, 2), blocksize=2),
    (Op("TopK", {"axis": 0}, outputs=2), [apart(4, 3), ints(2)], (1,)),
    (Op("TopK", {"largest": 0}, outputs=(True, False)), [apart(4, 3), ints(2)], (1,)),
]


@pytest.mark.parametrize(("op", "inputs", "constants"), GRADIENTS, ids=lambda value: str(value)[:60])
def test_gradient(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_gradient(op, inputs, constants=constants)


def test_gradient_reaches_the_input_of_a_split_from_one_output_alone() -> None:
    found = check_gradient(
        Op("Split", {"axis": 0}, outputs=3), [uniform(6, 2), ints(1, 2, 3)], outputs=[1], constants=(1,)
    )
    assert found[0][1:3].all()
    assert not found[0][[0, 3, 4, 5]].any()


@pytest.mark.parametrize(
    ("op", "inputs", "constants", "emitted"),
    [
        (Op("Concat", {"axis": 0}), [uniform(2, 3), uniform(1, 3)], (), {"ConcatTraining", "SplitTraining"}),
        (Op("Concat", {"axis": -1}), [uniform(2, 3), uniform(2, 1)], (), {"ConcatTraining", "SplitTraining"}),
        (*pair("Tile", uniform(2, 3), ints(3, 2)), {"Reshape", "ReduceSum"}),
        (*pair("Expand", uniform(3, 1), ints(2, 3, 4)), {"BroadcastGradientArgs"}),
        (*pair("Pad", uniform(4, 3), ints(2, 1, 3, 2), mode="reflect"), {"GatherGrad"}),
        (*sliced(uniform(4, 5), [1, -2], [4, -9], [0, 1], [2, -1]), {"SliceGrad"}),
        (*pair("Flatten", uniform(2, 3, 2)), {"Reshape"}),
        (Op("Split", {"axis": 0}, outputs=2, opset=12), [uniform(4)], (), {"Concat"}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_gradient_does_not_need_the_extents_when_it_is_built(
    op: Op, inputs: list[Array | None], constants: tuple[int, ...], emitted: set[str]
) -> None:
    """With named dimensions the rules take the general path; the results are those with known dimensions."""
    losses = [helper.make_node("ReduceSum", [y], [f"{y}_sum"], keepdims=0) for y in op.output_names]
    squares = [helper.make_node("Mul", [y, y], [f"{y}_square"]) for y in op.output_names]
    for loss, square in zip(losses, squares, strict=True):
        loss.input[0] = square.output[0]
    total = helper.make_node("Sum", [loss.output[0] for loss in losses], ["loss"])
    model = make_model(
        op, inputs, constants=constants, extra_nodes=[*squares, *losses, total], outputs=["loss"]
    )
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("loss", onnx.TensorProto.DOUBLE, []))
    trained = [value.name for value in model.graph.input]
    feeds = {name: np.asarray(inputs[int(name[1:])]) for name in trained}
    expected = run_model(gradient_model(model.SerializeToString(), trained, "loss"), feeds)
    for value in model.graph.input:
        for i, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{i}"
    backward = gradient_model(model.SerializeToString(), trained, "loss")
    assert emitted <= {node.op_type for node in onnx.ModelProto.FromString(backward).graph.node}
    found = run_model(backward, feeds)
    for name in trained:
        np.testing.assert_allclose(found[f"{name}_grad"], expected[f"{name}_grad"], 1e-12)


@pytest.mark.parametrize(
    ("shape", "starts", "ends", "axes", "steps"),
    [((4, 5), [1], [4], [0], [2]), ((4, 5), [4, 3], [-6, 0], [1, 0], [-2, -1]), ((6,), [2], [2], [0], [1])],
)
def test_slice_grad_writes_zeros_around_the_gradient(
    shape: tuple[int, ...], starts: list[int], ends: list[int], axes: list[int], steps: list[int]
) -> None:
    where = tuple(
        next(
            (
                slice(s, e if e >= -shape[a] else None, t)
                for s, e, a, t in zip(starts, ends, axes, steps, strict=True)
                if a == d
            ),
            slice(None),
        )
        for d in range(len(shape))
    )
    expected = np.zeros(shape)
    dy = uniform(*expected[where].shape)
    expected[where] = dy
    inputs = [dy, ints(*shape), ints(*starts), ints(*ends), ints(*axes), ints(*steps)]
    check_forward(Op("SliceGrad", domain=MICROSOFT), inputs, [expected], constants=range(1, 6))
    check_gradient(Op("SliceGrad", domain=MICROSOFT), inputs, constants=range(1, 6))


def test_concat_training_tells_the_length_of_every_input() -> None:
    parts = [uniform(2, 3), uniform(2, 0), uniform(2, 4)]
    op = Op("ConcatTraining", {"axis": -1}, MICROSOFT, outputs=2)
    check_forward(op, parts, [np.concatenate(parts, 1), ints(3, 0, 4)])


def test_split_training_cuts_by_the_given_lengths() -> None:
    x = uniform(5, 2)
    op = Op("SplitTraining", {"axis": 0}, MICROSOFT, outputs=2)
    check_forward(op, [x, ints(1, 4)], [x[:1], x[1:]], constants=(1,))


@pytest.mark.parametrize(
    ("a", "b", "a_axes", "b_axes"),
    [
        ([2, 1, 3], [2, 4, 3], [1], []),
        ([3], [2, 1, 3], [0, 1], []),
        ([2, 1, 3], [4, 1], [1], [0, 2]),
        ([], [2, 3], [0, 1], []),
        ([1, 1], [1, 1], [], []),
        ([0, 3], [1, 3], [], [0]),
    ],
)
def test_broadcast_gradient_args_names_the_axes_to_sum(
    a: list[int], b: list[int], a_axes: list[int], b_axes: list[int]
) -> None:
    op = Op("BroadcastGradientArgs", domain=MICROSOFT, outputs=2)
    check_forward(op, [ints(*a), ints(*b)], [ints(*a_axes), ints(*b_axes)], constants=(0, 1))


@pytest.mark.parametrize(
    "dtype", [np.bool_, np.int8, np.uint16, np.float16, np.int32, np.uint32, np.int64, np.uint64]
)
def test_copying_operators_take_every_type_of_fixed_width(dtype: Any) -> None:
    x = (np.arange(24) % 5).astype(dtype).reshape(2, 3, 4)
    check_forward(Op("Transpose", {"perm": [1, 2, 0]}), [x], [x.transpose(1, 2, 0)])
    check_forward(Op("Concat", {"axis": 1}), [x, x], [np.concatenate([x, x], 1)])
    check_forward(
        Op("Slice"), [x, ints(3), ints(0), ints(2), ints(-2)], [x[..., 3:0:-2]], constants=(1, 2, 3, 4)
    )
    check_forward(Op("Tile"), [x, ints(1, 2, 3)], [np.tile(x, (1, 2, 3))], constants=(1,))
    check_forward(
        Op("Expand"), [x[:, :1], ints(2, 3, 4)], [np.broadcast_to(x[:, :1], (2, 3, 4))], constants=(1,)
    )
    check_forward(
        Op("Pad"), [x, ints(0, 1, 0, 0, 0, 2)], [np.pad(x, ((0, 0), (1, 0), (0, 2)))], constants=(1,)
    )
    check_forward(
        Op("Pad", {"mode": "edge"}),
        [x, ints(0, 1, 0, 0, 0, 2)],
        [np.pad(x, ((0, 0), (1, 0), (0, 2)), "edge")],
        constants=(1,),
    )
    check_forward(Op("Gather", {"axis": 1}), [x, ints(2, -3)], [x[:, [2, 0]]])
    check_forward(Op("GatherElements", {"axis": 2}), [x, ints(*[1] * 6).reshape(2, 3, 1)], [x[..., 1:2]])
    check_forward(Op("Trilu"), [x], [np.triu(x)])


SHAPES = st.lists(st.integers(0, 19), min_size=1, max_size=5).map(tuple).filter(lambda s: np.prod(s) < 50_000)
DTYPES = st.sampled_from([np.uint8, np.float16, np.float32, np.float64])


def counted(shape: tuple[int, ...], dtype: Any) -> Array:
    return (np.arange(np.prod(shape)) % 2039).astype(dtype).reshape(shape)


@given(st.data(), SHAPES, DTYPES)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_transpose_of_any_shape_and_type(data: st.DataObject, shape: tuple[int, ...], dtype: Any) -> None:
    x, perm = counted(shape, dtype), data.draw(st.permutations(range(len(shape))))
    np.testing.assert_array_equal(run(Op("Transpose", {"perm": perm}), [x])[0], x.transpose(perm))


@given(st.data(), SHAPES, DTYPES)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_slice_is_that_of_numpy(data: st.DataObject, shape: tuple[int, ...], dtype: Any) -> None:
    """Starts are inside: before the first element ONNX and NumPy differ for negative steps."""
    x = counted(shape, dtype)
    parts = [
        (
            data.draw(st.integers(-n, n + 3)),
            data.draw(st.integers(-n - 3, n + 3)),
            data.draw(st.integers(-3, 3)),
        )
        for n in shape
    ]
    starts, ends, steps = zip(*((start, end, step or 4) for start, end, step in parts), strict=True)
    expected = x[tuple(slice(*part) for part in zip(starts, ends, steps, strict=True))]
    inputs = [x, ints(*starts), ints(*ends), ints(*range(x.ndim)), ints(*steps)]
    np.testing.assert_array_equal(run(Op("Slice"), inputs, constants=(1, 2, 3, 4))[0], expected)


def test_equal_elements_rank_by_position_and_nan_ranks_highest() -> None:
    x = np.array([1.0, np.nan, 3.0, 3.0, -np.inf])
    values, indices = run(Op("TopK", outputs=2), [x, ints(4)], constants=(1,))
    np.testing.assert_array_equal(values, [np.nan, 3.0, 3.0, 1.0])
    np.testing.assert_array_equal(indices, [1, 2, 3, 0])


def test_shapes_computed_in_the_graph_are_known_when_it_is_compiled() -> None:
    """Shape → Gather → Unsqueeze → Concat → Reshape, as exporters write them."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"]),
        helper.make_node("Unsqueeze", ["batch", "axis"], ["batch1"]),
        helper.make_node("Concat", ["batch1", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = {"zero": np.array(0), "axis": ints(0), "rest": ints(-1, 2)}
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 6])],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = uniform(5, 6, dtype=np.float32)
    np.testing.assert_array_equal(run_model(model.SerializeToString(), {"x": x})["y"], x.reshape(5, 3, 2))


REJECTED = [
    (pair("Transpose", X, perm=[0, 1, 1, 2]), "not a permutation"),
    (pair("Transpose", X, perm=[0, 1]), "not a permutation"),
    (pair("Reshape", X, ints(7, -1)), "cannot be reshaped"),
    (pair("Reshape", X, ints(-1, -1)), "more than one -1"),
    (pair("Reshape", X, ints(119)), "cannot be reshaped"),
    (pair("Reshape", X, ints(-2, 60)), "below -1"),
    (pair("Reshape", X, ints(2, 3, 4, 5, 0)), "does not have"),
    (pair("Reshape", X, np.array([120.0])), "int64 or int32"),
    (pair("Flatten", X, axis=5), "axis 5 is outside"),
    (pair("Squeeze", X, ints(1)), "size is not 1"),
    (pair("Squeeze", X, ints(7)), "axis 7 is outside"),
    (pair("Unsqueeze", X, ints(0, 0)), "twice"),
    (pair("Unsqueeze", X), "axes"),
    ((Op("Concat", {"axis": 0}), [uniform(2, 3), uniform(2, 4)], ()), "does not match"),
    ((Op("Concat", {"axis": 0}), [uniform(2, 3), uniform(2, 3, dtype=np.float32)], ()), "the same type"),
    ((Op("Concat", {"axis": 2}), [uniform(2, 3)], ()), "axis 2 is outside"),
    ((Op("Split", {"axis": 0}, outputs=2), [uniform(5), ints(2, 2)], (1,)), "add up to 4"),
    ((Op("Split", {"axis": 0}, outputs=2), [uniform(5), ints(-1, 6)], (1,)), "do not match the size"),
    ((Op("Split", {"axis": 0}, outputs=2), [uniform(5)], ()), "equal parts"),
    (pair("Slice", X, ints(0), ints(1), ints(0), ints(0)), "step along axis 0 is 0"),
    (pair("Slice", X, ints(0, 1), ints(1)), "the same length"),
    (pair("Slice", X, ints(0), ints(1), ints(4)), "axis 4 is outside"),
    (pair("Expand", X, ints(7, 5)), "do not broadcast"),
    (pair("Expand", X, ints(-1)), "negative"),
    (pair("Tile", X, ints(2)), "one entry per axis"),
    (pair("Tile", X, ints(1, 1, 1, -1)), "negative"),
    (pair("Pad", X, ints(1, 2)), "two entries for each"),
    (pair("Pad", X, ints(-1, 0, 0, 0, -2, 0, 0, 0)), "do not fit axis 0"),
    (pair("Pad", uniform(0), ints(1, 0), mode="edge"), "nothing to fill the border from"),
    (pair("Pad", X, ints(*[0] * 8), np.array(1.0, np.float32)), "expected float64"),
    (pair("CumSum", X, np.array(4)), "axis 4 is outside"),
    (pair("TopK", X, ints(6)), "between 0 and the size 5"),
    (pair("DepthToSpace", uniform(1, 6, 2, 2), blocksize=2), "not a multiple"),
    (pair("DepthToSpace", uniform(1, 4, 2, 2), blocksize=2, mode="XYZ"), "DCR or CRD"),
    ((Op("Range"), [np.array(0.0), np.array(1.0), np.array(0.0)], (0, 1, 2)), "must not be 0"),
    ((Op("Range"), [np.array(0.0), np.array(np.nan), np.array(1.0)], (0, 1, 2)), "no finite number"),
    ((Op("ConstantOfShape"), [ints(2, -1)], (0,)), "negative"),
    ((Op("OneHot"), [ints(1), np.array(-1), ints(0, 1)], (1,)), "must not be negative"),
    (
        (Op("BroadcastGradientArgs", domain=MICROSOFT, outputs=2), [ints(2), ints(3)], (0, 1)),
        "do not broadcast",
    ),
    ((Op("Constant", {"value_string": b"x"}), [], ()), "has strings"),
]


@pytest.mark.parametrize(("case", "match"), REJECTED, ids=lambda value: str(value)[:60])
def test_bad_input_is_refused_by_name(case: Any, match: str) -> None:
    op, inputs, constants = case
    check_rejected(op, inputs, match, constants)


@pytest.mark.parametrize(
    ("pads", "axes", "value"),
    [([1, 0, 2, 1], None, ()), ([1, -1], [-1], ()), ([-1, 2], [0], (1,)), ([0, 0], [0], ())],
)
def test_the_value_of_the_border_has_a_gradient(
    pads: list[int], axes: list[int] | None, value: tuple[int, ...]
) -> None:
    inputs = [uniform(2, 3), ints(*pads), uniform(*value, seed=1), None if axes is None else ints(*axes)]
    constants = {1} if axes is None else {1, 3}
    check_gradient(Op("Pad", opset=18), inputs, constants=constants)
    check_gradient(Op("Pad", opset=18), inputs, wrt=[2], constants=constants)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_the_values_of_one_hot_have_a_gradient(axis: int) -> None:
    inputs = [np.array([[0, 2, -1], [5, -9, 1]]), np.array(3), np.array([0.5, 2.0])]
    check_gradient(Op("OneHot", {"axis": axis}), inputs, constants={1})


def test_a_plain_tensor_is_an_optional_that_is_there() -> None:
    x = uniform(2, 3)
    check_forward(Op("OptionalGetElement", opset=18), [x], [x])
    check_gradient(Op("OptionalGetElement", opset=18), [x])
    check_forward(Op("OptionalHasElement", opset=18), [x], [np.array(True)])
    check_forward(Op("OptionalHasElement", opset=18), [None], [np.array(False)])
