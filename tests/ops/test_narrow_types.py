"""Floats of 16 bits or less, integers smaller than a byte: conversion, quantization, movement, and whole models.

The oracles are `ml_dtypes`, `onnx.reference`, and the same model in float32.
"""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from helpers import MICROSOFT, Op, check_rejected, make_model, run, run_model, uniform
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Array = NDArray[Any]

FLOAT8 = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]
FLOAT6 = ["float6_e2m3fn", "float6_e3m2fn"]
SMALL_FLOATS = [*FLOAT8, *FLOAT6, "float4_e2m1fn"]
SMALL_INTEGERS = ["int4", "uint4", "int2", "uint2"]
PACKED = [*SMALL_INTEGERS, *FLOAT6, "float4_e2m1fn"]
ALL = [*SMALL_FLOATS, *SMALL_INTEGERS, "float8_e8m0fnu"]
BITS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "float4_e2m1fn": 4, **dict.fromkeys(FLOAT6, 6)}
HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
OPSET = 25


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name))


def number_of(name: str | np.dtype[Any]) -> int:
    return helper.np_dtype_to_tensor_dtype(dtype_of(name) if isinstance(name, str) else name)


def every_code(name: str) -> Array:
    codes = np.arange(2 ** BITS.get(name, 8), dtype=np.uint8)
    if name in {"int4", "int2"}:
        codes = ((codes.astype(np.int8) << (8 - BITS[name])) >> (8 - BITS[name])).view(np.uint8)
    return codes.view(dtype_of(name))


def same(found: Array, expected: Array) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    wide = np.int64 if found.dtype.name in SMALL_INTEGERS else np.float64
    np.testing.assert_array_equal(found.astype(wide), expected.astype(wide))


def check_bits(found: Array, expected: Array) -> None:
    """The same bits, as far as the type has them."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    mask = 2 ** BITS.get(found.dtype.name, 8) - 1
    of_found, of_expected = (np.frombuffer(x.tobytes(), np.uint8) & mask for x in (found, expected))
    np.testing.assert_array_equal(of_found, of_expected)


def cast(x: Array, to: np.dtype[Any], opset: int = OPSET, **attributes: Any) -> Array:
    (found,) = run(Op("Cast", {"to": number_of(to), **attributes}, opset=opset), [x])
    return found


@pytest.mark.parametrize("to", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", ALL)
def test_every_code_has_its_value(name: str, to: Any) -> None:
    codes = every_code(name)
    with np.errstate(over="ignore"):
        same(cast(codes, np.dtype(to)), codes.astype(np.float64).astype(to))


@pytest.mark.parametrize("name", ALL)
def test_every_value_goes_to_its_code_and_back(name: str) -> None:
    codes = every_code(name)
    if name not in SMALL_INTEGERS:
        codes = codes[np.isfinite(codes.astype(np.float32))]
    same(cast(codes.astype(np.float32), dtype_of(name)), codes)


@pytest.mark.parametrize("source", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("name", SMALL_FLOATS)
def test_floats_round_to_the_nearest(name: str, saturate: int, source: Any) -> None:
    exact = np.sort(every_code(name).astype(np.float64))
    exact = exact[np.isfinite(exact)]
    halfway = (exact[1:] + exact[:-1]) / 2  # where rounding has to look at the lower bits
    x = np.concatenate([exact, halfway, np.nextafter(halfway, 1e9), np.nextafter(halfway, -1e9)])
    x = np.concatenate(
        [x, exact.max() * np.array([1.03, 1.1, 2, 100]), -exact.max() * np.array([1.03, 1.1, 2, 100])]
    )
    x = np.concatenate([x, [np.inf, -np.inf, 0, -0.0, 1e-30], uniform(501, low=-2, high=2)])
    with np.errstate(over="ignore"):
        x = x.astype(np.float32).astype(source)  # ml_dtypes rounds a double to float first
    to = dtype_of(name)
    expected = numpy_helper.saturate_cast(x, to) if saturate and name in FLOAT8 else x.astype(to)
    same(cast(x, to, saturate=saturate), expected)


@pytest.mark.parametrize("name", FLOAT8)
def test_what_is_no_number_stays_so(name: str) -> None:
    for saturate in (0, 1):
        found = cast(np.array([np.nan, -np.nan], np.float32), dtype_of(name), saturate=saturate)
        assert np.isnan(found.astype(np.float32)).all()


@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
def test_exponents_round_as_they_are_told(mode: str) -> None:
    x = np.exp2(uniform(300, low=-120, high=120)).astype(np.float32)
    x = np.concatenate(
        [x, np.exp2(np.arange(-126, 128)).astype(np.float32), np.float32([1.5, 3, 3e38, 1.7e38])]
    )
    for saturate in (0, 1):
        expected = numpy_helper.to_float8e8m0(x, bool(saturate), mode)
        same(cast(x, expected.dtype, saturate=saturate, round_mode=mode), expected)
    assert cast(np.float32([np.inf]), expected.dtype).astype(np.float32)[0] == 2.0**127
    assert np.isnan(cast(np.float32([np.inf, 0]), expected.dtype, saturate=0).astype(np.float32)).all()
    check_rejected(
        Op("Cast", {"to": TensorProto.FLOAT8E8M0, "round_mode": "even"}, opset=OPSET), [x], "round_mode"
    )


@pytest.mark.parametrize("source", [np.int8, np.int32, np.int64, np.uint8, np.uint64, np.float32, np.bool_])
@pytest.mark.parametrize("name", SMALL_INTEGERS)
def test_integers_keep_their_lowest_bits(name: str, source: Any) -> None:
    x = np.arange(-9, 17).astype(source) if np.dtype(source).kind in "if" else np.arange(26).astype(source)
    if np.dtype(source).itemsize == 8:
        x[:2] = [2**62 + 5, 2**60 + 3]
    mask = 2 ** BITS[name] - 1
    low = x.astype(np.int64) & mask
    signed = np.where((low > mask // 2) & name.startswith("int"), low - mask - 1, low)
    np.testing.assert_array_equal(cast(x, dtype_of(name)).astype(np.int64), signed)


@pytest.mark.parametrize(
    ("a", "b"), [*itertools.product(["int4", "uint2", "float4_e2m1fn", "float8_e5m2"], repeat=2)]
)
def test_small_types_to_small_types(a: str, b: str) -> None:
    x = every_code(a)
    x = x[np.isfinite(x.astype(np.float32))]
    found, to = cast(x, dtype_of(b)), dtype_of(b)
    if b in SMALL_INTEGERS:
        mask = 2 ** BITS[b] - 1
        low = x.astype(np.float64).astype(np.int64) & mask
        expected = np.where((low > mask // 2) & b.startswith("int"), low - mask - 1, low)
        np.testing.assert_array_equal(found.astype(np.int64), expected)
    else:
        same(
            found,
            numpy_helper.saturate_cast(x.astype(np.float64), to)
            if b in FLOAT8
            else x.astype(np.float64).astype(to),
        )


@pytest.mark.parametrize("shape", [(0,), (1,), (3,), (2, 5), (3, 7, 11), (2000,)])
@pytest.mark.parametrize("name", PACKED)
def test_any_number_of_packed_elements(name: str, shape: tuple[int, ...]) -> None:
    codes = every_code(name)
    x = np.resize(codes, shape)
    np.testing.assert_array_equal(cast(x, np.dtype(np.float32)), x.astype(np.float32))
    same(cast(x.astype(np.float32), dtype_of(name)), x)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.float32, np.int32), (np.uint32, np.float32), (np.float64, np.int64), (ml_dtypes.bfloat16, np.int16),
        (np.float16, ml_dtypes.bfloat16), (np.int8, ml_dtypes.float8_e5m2), (ml_dtypes.int4, ml_dtypes.uint4),
        (ml_dtypes.uint2, ml_dtypes.int2), (np.complex64, np.float64), (np.uint8, np.bool_),
    ],
)  # fmt: skip
def test_bit_cast_keeps_the_bits(a: Any, b: Any) -> None:
    rng = np.random.default_rng(0)
    size = np.dtype(a).itemsize
    x = rng.integers(0, 256, (7, 3 * size), dtype=np.uint8).view(a)
    if np.dtype(a).name in BITS:
        x = np.resize(every_code(np.dtype(a).name), (7, 3))
    if np.dtype(b) == np.bool_:
        x = x % 2
    (found,) = run(Op("BitCast", {"to": number_of(np.dtype(b))}, opset=26), [x])
    assert found.dtype == np.dtype(b)
    if np.dtype(a).name in BITS:
        mask = 2 ** BITS[np.dtype(a).name] - 1
        np.testing.assert_array_equal(found.view(np.uint8) & mask, x.view(np.uint8) & mask)
    else:
        assert found.tobytes() == x.tobytes()


def test_bit_cast_between_widths_is_rejected() -> None:
    check_rejected(
        Op("BitCast", {"to": TensorProto.INT64}, opset=26),
        [uniform(3, dtype=np.float32)],
        "the widths must be equal",
    )


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        (Op("Identity", opset=OPSET), (3, 5)),
        (Op("Transpose", {"perm": [2, 0, 1]}, opset=OPSET), (3, 5, 7)),
        (Op("Flatten", {"axis": 2}, opset=OPSET), (3, 5, 7)),
        (Op("Concat", {"axis": 0}, opset=13), (3, 3)),
        (Op("Shape", opset=OPSET), (3, 5)),
        (Op("Size", opset=OPSET), (3, 5)),
        (Op("DepthToSpace", {"blocksize": 2}, opset=13), (1, 4, 3, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", [*ALL, "float16", "bfloat16", "complex64", "complex128"])
def test_movement_of_any_type(name: str, op: Op, shape: tuple[int, ...]) -> None:
    if name.startswith("complex"):
        x = (uniform(*shape) + 1j * uniform(*shape, seed=1)).astype(name)
    else:
        x = np.resize(every_code(name), shape) if name in ALL else uniform(*shape).astype(HALVES[name])
    bits = x.view(np.uint8) if x.itemsize == 1 else x
    (found,) = run(op, [x])
    (expected,) = ReferenceEvaluator(make_model(op, [bits])).run(None, {"x0": bits})
    if op.type in {"Shape", "Size"}:
        np.testing.assert_array_equal(found, expected)
    else:
        assert found.dtype == x.dtype
        check_bits(found, np.asarray(expected).astype(bits.dtype).view(x.dtype))


@pytest.mark.parametrize("name", PACKED)
def test_packed_values_through_shapes_that_constants_decide(name: str) -> None:
    x = np.resize(every_code(name), (3, 5, 1))
    shape, axes = np.array([5, 3], np.int64), np.array([2], np.int64)
    (found,) = run(Op("Reshape", opset=OPSET), [x, shape], constants=[1])
    same(found, x.reshape(5, 3))
    (found,) = run(Op("Squeeze", opset=OPSET), [x, axes], constants=[1])
    same(found, x[..., 0])
    (found,) = run(Op("Unsqueeze", opset=OPSET), [x, axes], constants=[1])
    same(found, x[:, :, None])
    indices = np.array([[4, 0], [2, 1]], np.int64)
    (found,) = run(Op("Gather", {"axis": 1}, opset=13), [x, indices])
    same(found, x[:, indices])


@pytest.mark.parametrize("name", [*ALL, "float16", "bfloat16"])
def test_constants_of_any_type(name: str) -> None:
    to = dtype_of(name) if name in ALL else HALVES[name]
    value = np.array([1], np.float32).astype(to)
    fill = helper.make_node("ConstantOfShape", ["s"], ["a"], value=numpy_helper.from_array(value))
    constant = helper.make_node(
        "Constant", [], ["b"], value=numpy_helper.from_array(np.resize(value, (2, 3)))
    )
    shape = numpy_helper.from_array(np.array([3, 5], np.int64), "s")
    outputs = [onnx.ValueInfoProto(name=n) for n in "ab"]
    graph = helper.make_graph([fill, constant], "g", [], outputs, [shape])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=12)
    found = run_model(model.SerializeToString(), {})
    same(found["a"], np.full((3, 5), 1, np.float32).astype(to))
    same(found["b"], np.full((2, 3), 1, np.float32).astype(to))


@pytest.mark.parametrize("name", [*ALL, "bfloat16", "complex64", "complex128"])
@pytest.mark.parametrize("raw", [False, True])
def test_initializers_in_either_form(name: str, raw: bool) -> None:
    if name.startswith("complex"):
        values = (uniform(3, 5) + 1j * uniform(3, 5, seed=1)).astype(name)
    elif name == "bfloat16":
        values = uniform(3, 5).astype(HALVES[name])
    else:
        values = np.resize(every_code(name), (3, 5))
    tensor = numpy_helper.from_array(values, "c")
    if not raw:
        typed = onnx.TensorProto(name="c", data_type=tensor.data_type, dims=tensor.dims)
        if name == "complex64":
            typed.float_data.extend(values.view(np.float32).ravel())
        elif name == "complex128":
            typed.double_data.extend(values.view(np.float64).ravel())
        elif name in FLOAT6:
            typed.int32_data.extend(int(b) for b in values.view(np.uint8).ravel())
        else:
            width = np.uint16 if name == "bfloat16" else np.uint8
            typed.int32_data.extend(int(b) for b in np.frombuffer(tensor.raw_data, width))
        tensor = typed
        check_bits(numpy_helper.to_array(tensor), values)
    node = helper.make_node("Identity", ["c"], ["y"])
    graph = helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name="y")], [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=12)
    check_bits(run_model(model.SerializeToString(), {})["y"], values)


def test_an_initializer_of_the_wrong_size_is_rejected() -> None:
    for data in (b"\0\0\0", b"\0\0\0\0\0"):
        tensor = onnx.TensorProto(name="c", data_type=TensorProto.INT4, dims=[7], raw_data=data)
        node = helper.make_node("Identity", ["c"], ["y"])
        graph = helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name="y")], [tensor])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=12)
        with pytest.raises(RuntimeError, match=f"needs 4 bytes in raw_data, found {len(data)}"):
            run_model(model.SerializeToString(), {})


# Quantization.


def quantized_by_reference(op: Op, inputs: list[Array | None]) -> Array:
    model = make_model(op, inputs)
    given = {f"x{i}": x for i, x in enumerate(inputs) if x is not None}
    return np.asarray(ReferenceEvaluator(model).run(None, given)[0])


GRANULARITIES: dict[str, tuple[dict[str, int], tuple[int, ...]]] = {
    "tensor": ({}, ()),
    "axis": ({"axis": 1}, (6,)),
    "blocks": ({"axis": 1, "block_size": 3}, (5, 2, 7)),
}


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("source", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", [*SMALL_INTEGERS, *FLOAT8, "float4_e2m1fn", "uint8", "int16"])
def test_quantization_and_back(name: str, source: str, granularity: str) -> None:
    attributes, scales = GRANULARITIES[granularity]
    kind = HALVES.get(source, np.dtype(np.float32))
    to = dtype_of(name) if name in ALL else np.dtype(name)
    x = uniform(5, 6, 7, low=-9, high=9).astype(kind)
    scale = uniform(*scales, low=0.5, high=1.5).astype(kind)
    zero = None
    if name not in SMALL_FLOATS:
        zero = np.ones(scales).astype(to)
    op = Op(
        "QuantizeLinear",
        {**attributes, **({} if zero is not None else {"output_dtype": number_of(to)})},
        opset=23,
    )
    (found,) = run(op, [x, scale, zero])
    expected = quantized_by_reference(op, [x, scale, zero])
    same(found, expected)
    back = Op("DequantizeLinear", attributes, opset=23)
    (restored,) = run(back, [found, scale, zero])
    wanted = (found.astype(np.float32) - (0 if zero is None else 1)).astype(np.float32)
    wide = np.repeat(scale, 3, 1) if granularity == "blocks" else scale.reshape(-1, 1) if scales else scale
    same(restored, (wanted * wide.astype(np.float32)).astype(kind))


@pytest.mark.parametrize("half", HALVES)
def test_the_types_of_scale_precision_and_result_differ(half: str) -> None:
    x = uniform(40, low=-9, high=9, dtype=np.float32)
    scale = np.array(0.3).astype(HALVES[half])
    for precision in (TensorProto.FLOAT, number_of(HALVES[half])):
        op = Op("QuantizeLinear", {"precision": precision, "output_dtype": TensorProto.INT8}, opset=23)
        (found,) = run(op, [x, scale])
        kind = helper.tensor_dtype_to_np_dtype(precision)
        expected = np.rint((x.astype(kind) / scale.astype(kind)).astype(np.float64))
        np.testing.assert_allclose(found.astype(np.float64), expected, atol=0 if kind == np.float32 else 1)
    q = np.arange(-100, 100, dtype=np.int8)
    back = Op("DequantizeLinear", {"output_dtype": TensorProto.FLOAT}, opset=23)
    (found,) = run(back, [q, scale])
    same(found, q.astype(np.float32) * scale.astype(np.float32))


# Models of half precision.


def half_model(
    nodes: list[onnx.NodeProto], kind: np.dtype[Any], constants: dict[str, Array], outputs: list[str]
) -> bytes:
    number = helper.np_dtype_to_tensor_dtype(kind)
    inputs = [helper.make_tensor_value_info("x", number, [4, 6])]
    initializers = [
        numpy_helper.from_array(v.astype(kind) if v.dtype == np.float64 else v, name)
        for name, v in constants.items()
    ]
    graph = helper.make_graph(
        nodes, "g", inputs, [onnx.ValueInfoProto(name=o) for o in outputs], initializers
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString()


@pytest.mark.parametrize("half", HALVES)
def test_a_model_of_half_precision_runs_in_float_inside(half: str) -> None:
    """Its results are those of float32 on the rounded inputs and constants, rounded once."""
    kind = HALVES[half]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Reshape", ["a", "shape"], ["b"]),  # moves values stored as float
        helper.make_node("Relu", ["b"], ["r"]),
        helper.make_node("Mul", ["r", "r"], ["s"]),
        helper.make_node("Transpose", ["s"], ["t"]),
        helper.make_node("Softmax", ["t"], ["y"]),
        helper.make_node("Transpose", ["x"], ["xt"]),  # moves values stored in half precision
        helper.make_node("Concat", ["xt", "tall"], ["joined"], axis=0),  # both kinds
        helper.make_node("ReduceMean", ["joined"], ["z"], axes=[1]),
        helper.make_node("Exp", ["ten"], ["e"]),  # a constant that is folded
        helper.make_node("Sub", ["z", "e"], ["tall_z"]),
        helper.make_node("Reshape", ["s", "flat"], ["back"]),
        helper.make_node("Tanh", ["back"], ["tall"]),
    ]
    nodes = [nodes[i] for i in (0, 1, 2, 3, 4, 5, 6, 11, 12, 7, 8, 9, 10)]
    constants = {
        "w": uniform(6, 8), "shape": np.array([8, 4]), "flat": np.array([8, 4]), "ten": np.array([0.7]),
    }  # fmt: skip
    outputs = ["y", "s", "r", "tall_z", "e"]
    x = uniform(4, 6, seed=3).astype(kind)
    exact = {
        n: v.astype(kind).astype(np.float64) if v.dtype == np.float64 else v for n, v in constants.items()
    }
    found = run_model(half_model(nodes, kind, constants, outputs), {"x": x})
    wide = run_model(half_model(nodes, np.dtype(np.float32), exact, outputs), {"x": x.astype(np.float32)})
    for name in outputs:
        assert found[name].dtype == kind
        np.testing.assert_array_equal(
            found[name].astype(np.float32), wide[name].astype(kind).astype(np.float32)
        )


@pytest.mark.parametrize("half", HALVES)
def test_values_that_are_read_in_both_forms_are_not_overwritten(half: str) -> None:
    kind = HALVES[half]
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("Exp", ["a"], ["b"]),
        helper.make_node(
            "Cast", ["a"], ["c"], to=TensorProto.FLOAT
        ),  # needs it rounded, after the float was read
        helper.make_node("Abs", ["a"], ["d"]),
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.DOUBLE),
        helper.make_node("Sqrt", ["d"], ["g"]),
        helper.make_node("Add", ["g", "b"], ["h"]),
    ]
    x = uniform(4, 6).astype(kind)
    found = run_model(half_model(nodes, kind, {}, ["b", "c", "f", "h", "a"]), {"x": x}, repeat=3)
    a = -x.astype(np.float32)
    np.testing.assert_array_equal(found["c"], a)
    np.testing.assert_array_equal(found["f"], x.astype(np.float64))
    np.testing.assert_array_equal(found["a"].astype(np.float32), a)
    limit = 1e-3 if half == "float16" else 1e-2
    np.testing.assert_allclose(found["b"].astype(np.float32), np.exp(a), limit)
    np.testing.assert_allclose(found["h"].astype(np.float32), np.sqrt(np.abs(a)) + np.exp(a), limit)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (5, 1001)])
def test_half_precision_of_any_size(half: str, shape: tuple[int, ...]) -> None:
    x = uniform(*shape, low=-50, high=50).astype(HALVES[half])
    (found,) = run(Op("Add"), [x, x])
    same(found, (x.astype(np.float32) * 2).astype(HALVES[half]))


# Operators of com.microsoft and those of training, with the shapes of their inputs.
MICROSOFT_CASES: list[tuple[Op, list[tuple[int, ...]]]] = [
    (Op("FusedMatMul", {"transB": 1, "alpha": 0.5}, domain=MICROSOFT), [(3, 4), (5, 4)]),
    (Op("Gelu", domain=MICROSOFT), [(3, 4)]),
    (Op("FastGelu", domain=MICROSOFT), [(3, 4), (4,)]),
    (Op("QuickGelu", domain=MICROSOFT), [(3, 4)]),
    (Op("BiasGelu", domain=MICROSOFT), [(3, 4), (4,)]),
    (Op("SimplifiedLayerNormalization"), [(3, 4), (4,)]),
    (Op("SkipLayerNormalization", domain=MICROSOFT), [(2, 3, 4), (2, 3, 4), (4,), (4,)]),
    (Op("GeluGrad", domain=MICROSOFT), [(3, 4), (3, 4)]),
    (Op("ReluGrad", domain=MICROSOFT), [(3, 4), (3, 4)]),
    (Op("SoftmaxGrad", {"axis": 1}, domain=MICROSOFT), [(3, 4), (3, 4)]),
    (Op("SoftmaxGrad_13", {"axis": 1}, domain=MICROSOFT), [(3, 4), (3, 4)]),
    (
        Op("ConvGrad", {"kernel_shape": [3, 3]}, domain=MICROSOFT, outputs=3),
        [(1, 2, 4, 4), (1, 3, 6, 6), (2, 3, 3, 3)],
    ),
]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(("op", "shapes"), MICROSOFT_CASES, ids=str)
def test_other_domains_in_half_precision(op: Op, shapes: list[tuple[int, ...]], half: str) -> None:
    inputs = [uniform(*shape, seed=i).astype(HALVES[half]) for i, shape in enumerate(shapes)]
    found = run(op, inputs)
    wide = run(op, [x.astype(np.float32) for x in inputs])
    for mine, reference in zip(found, wide, strict=True):
        same(mine, reference.astype(HALVES[half]))
