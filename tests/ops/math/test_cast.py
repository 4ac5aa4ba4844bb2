"""Cast: every pair of types, 16-bit floats bit by bit, values out of range."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import ortrain
import pytest
from helpers import Op, check_forward, check_gradient, make_model, run, run_model, uniform
from onnx import TensorProto, helper

SPECIAL_POINTS = {"linear": ["Cast", "CastLike"]}

TYPES: list[Any] = [
    np.float32,
    np.float64,
    np.float16,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.uint8,
    np.uint16,
    np.uint32,
    np.uint64,
    np.bool_,
]


def _cast(to: Any) -> Op:
    return Op("Cast", {"to": helper.np_dtype_to_tensor_dtype(np.dtype(to))})


@pytest.mark.parametrize("to", TYPES, ids=lambda t: t.__name__)
@pytest.mark.parametrize("given", TYPES, ids=lambda t: t.__name__)
def test_every_pair(given: Any, to: Any) -> None:
    x = np.array([[0, 1, 2, 3, 100], [7, 5, 64, 127, 0]]).astype(given)
    check_forward(_cast(to), [x], [x.astype(to)])
    check_forward(_cast(to), [x[:0]], [x[:0].astype(to)])
    check_forward(Op("CastLike"), [x, np.zeros(1, to)], [x.astype(to)])


def test_a_cast_to_the_type_of_a_value_does_not_read_the_value(tmp_path: Path) -> None:
    """The session turns CastLike into Cast, also where the shape of the other value is not known."""
    nodes = [
        helper.make_node("NonZero", ["other"], ["places"]),
        helper.make_node("CastLike", ["x", "places"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in ("x", "other")],
        [helper.make_tensor_value_info("y", TensorProto.INT64, ["n"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = ortrain.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    session = ortrain.InferenceSession(model.SerializeToString(), options)
    given = np.array([1.5, -2.5, 3], np.float32)
    (found,) = session.run(None, {"x": given, "other": given})
    np.testing.assert_array_equal(found, [1, -2, 3])
    (node,) = [n for n in onnx.load(tmp_path / "optimized.onnx").graph.node if n.op_type != "NonZero"]
    assert node.op_type == "Cast"
    assert list(node.input) == ["x"]


def test_every_float16() -> None:
    x = np.arange(65536, dtype=np.uint16).view(np.float16)
    check_forward(_cast(np.float32), [x], [x.astype(np.float32)])


def test_rounding_to_float16() -> None:
    halves = np.arange(0, 0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    between = (halves[1:] + halves[:-1]) / 2  # ties, to even
    x = np.concatenate(
        [halves, between, np.nextafter(between, np.inf), np.nextafter(between, -np.inf), -between]
    )
    x = np.concatenate([x, [65519, 65520, 1e9, np.inf, -np.inf, np.nan, 1e-8, 2.9e-8, 3e-8]]).astype(
        np.float32
    )
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    check_forward(_cast(np.float16), [x], [expected])


def test_bfloat16_by_its_bits() -> None:
    x = np.concatenate(
        [uniform(1000, low=-1e3, high=1e3), [0, -0.0, np.inf, -np.inf, 1e-40, 3.4e38, 1 + 2**-8]]
    )
    x = x.astype(np.float32)
    (found,) = run(Op("Cast", {"to": TensorProto.BFLOAT16}), [x])
    with np.errstate(over="ignore"):
        expected = x.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(found.view(np.uint16), expected.view(np.uint16))


def test_bfloat16_and_back() -> None:
    x = uniform(1000, low=-1e3, high=1e3, dtype=np.float32)
    back = helper.make_node("Cast", ["y0"], ["z"], to=TensorProto.FLOAT)
    model = make_model(Op("Cast", {"to": TensorProto.BFLOAT16}), [x], extra_nodes=[back], outputs=["z"])
    found = run_model(model.SerializeToString(), {"x0": x})["z"]
    np.testing.assert_array_equal(found, x.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_numbers_that_do_not_fit_become_the_nearest() -> None:
    x = np.array([300.7, -300.7, 1e30, -1e30, np.nan, np.inf, -np.inf, 2.9, -2.9], np.float32)
    check_forward(_cast(np.int8), [x], [np.array([127, -128, 127, -128, 0, 127, -128, 2, -2], np.int8)])
    check_forward(_cast(np.uint8), [x], [np.array([255, 0, 255, 0, 0, 255, 0, 2, 0], np.uint8)])
    big = np.array([2.0**63, -(2.0**63), 2.0**62], np.float64)
    check_forward(_cast(np.int64), [big], [np.array([2**63 - 1, -(2**63), 2**62], np.int64)])


def test_gradient_passes_through() -> None:
    check_gradient(_cast(np.float64), [uniform(3, 4)])
    check_gradient(Op("CastLike"), [uniform(3, 4), np.zeros(1)], wrt=[0])
