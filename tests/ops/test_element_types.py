"""Every element type that the schemas of the ONNX operators allow, on the node cases of the `onnx` package.

Each case of one operator is run again with the inputs of one type variable in each of the types that the
schema gives it. What is expected comes from ``onnx.reference``: on the same values for integers and bool; in
double for floating-point types, whose inputs are rounded first.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from helpers import Op, check_forward, run_model
from node_cases import node_cases
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tensor_cases import ints

Array = NDArray[Any]

# The behaviour of these depends on the type beyond a formula on real numbers; they have their own tests.
OWN_TESTS = {"Cast", "CastLike", "BitCast", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
# They draw random values.
RANDOM = {
    "Bernoulli",
    "Multinomial",
    "RandomNormalLike",
    "RandomUniformLike",
    "RandomNormal",
    "RandomUniform",
}
PLAIN = [
    "float", "double", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "bool",
]  # fmt: skip
NUMPY = {
    name: np.dtype(getattr(ml_dtypes if name == "bfloat16" else np, {"float": "float32"}.get(name, name)))
    for name in PLAIN
}
FLOATS = {NUMPY[name] for name in ("float", "double", "float16", "bfloat16")}
# Operators that onnx.reference computes in float32 for any type.
REFERENCE_IN_FLOAT = {
    "AffineGrid",
    "DeformConv",
    "Erf",
    "Gelu",
    "GridSample",
    "GroupNormalization",
    "HardSwish",
}
# Operators for which onnx.reference rounds intermediate values to the integer type of the input: it gets float64, and
# its results are truncated.
INTEGERS_AS_FLOAT = {"GridSample"}
# Types of one input that have to match those of another here: float32 goes with float16 and bfloat16, and float64 only
# with itself.
NOT_MIXED = {
    "Attention": {"double"},
    "BatchNormalization": {"double"},
    "RMSNormalization": {"double"},
}
# Inputs that determine the shape of a result are constants of the model.
DECIDE_SHAPES = {
    "axes", "block_shape", "delta", "depth", "ends", "image_shape", "input_shape", "k", "limit", "new_shape", "pads",
    "repeats", "scales", "shape", "size", "sizes", "split", "start", "starts", "steps", "windowsize",
}  # fmt: skip
# Kernels do not depend on the version: the types that earlier versions are tested with beside the newest.
OF_OLDER_OPSETS = {"double", "float16", "int64", "bool"}
# More cases of an operator show nothing new about types. The second, of other shapes or attributes, is run in its newest
# opset, with the types above; inputs that the first does not have get all types.
CASES_OF_AN_OPERATOR = 2
LARGEST_CASE = 4000
OLDEST_OPSET = 12


@dataclass(frozen=True)
class Typed:
    """A node case with the inputs at some positions in another type."""

    case: Any
    positions: tuple[int, ...]
    variable: str
    type: str
    opset: int

    def __str__(self) -> str:
        return f"{self.case.name.removeprefix('test_')}-{self.variable}-{self.type}-{self.opset}"


def _formal(schema: onnx.defs.OpSchema, i: int) -> onnx.defs.OpSchema.FormalParameter:
    return schema.inputs[min(i, len(schema.inputs) - 1)]


def _array(value: Any) -> Array:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def _usable(case: Any) -> bool:
    nodes = case.model.graph.node
    if len(nodes) != 1 or nodes[0].domain or nodes[0].op_type in OWN_TESTS | RANDOM:
        return False
    values = [*case.model.graph.input, *case.model.graph.output]
    if not all(v.type.HasField("tensor_type") for v in values):
        return False
    if any(a.HasField("g") for a in nodes[0].attribute) or "training" in case.name:
        return False
    (inputs, _), *_ = case.data_sets
    arrays = [_array(x) for x in inputs]
    return all(a.dtype in NUMPY.values() for a in arrays) and sum(a.size for a in arrays) <= LARGEST_CASE


def _opsets(case: Any) -> Iterator[int]:
    """The newest opset of the case, and the oldest of each earlier version of its operator that has its form."""
    (node,) = case.model.graph.node
    (newest,) = (o.version for o in case.model.opset_import if o.domain == "")
    yield max(newest, OLDEST_OPSET)
    seen = {onnx.defs.get_schema(node.op_type, max(newest, OLDEST_OPSET)).since_version}
    # Before version 14 the reference always normalizes by the batch's own statistics, whatever the model says.
    oldest = 14 if node.op_type == "BatchNormalization" else OLDEST_OPSET
    for opset in range(oldest, newest):
        try:
            schema = onnx.defs.get_schema(node.op_type, opset)
        except onnx.defs.SchemaError:
            continue
        fits = (
            not schema.deprecated
            and schema.min_input <= len(node.input) <= schema.max_input
            and len(node.output) <= schema.max_output
            and all(a.name in schema.attributes for a in node.attribute)
            and not any(
                a.required for n, a in schema.attributes.items() if n not in {x.name for x in node.attribute}
            )
        )
        if fits and schema.since_version not in seen:
            seen.add(schema.since_version)
            yield opset


def _variants(case: Any, before: set[str]) -> Iterator[Typed]:
    """The case in other types; with fewer of them for the type variables of earlier cases, to which its own are added."""
    (node,) = case.model.graph.node
    named = [value.name for value in case.model.graph.input]
    found = set()
    for opset in _opsets(case):
        schema = onnx.defs.get_schema(node.op_type, opset)
        allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
        by_variable: dict[str, list[int]] = {}
        for i, name in enumerate(node.input):
            if name in named:
                by_variable.setdefault(_formal(schema, i).type_str, []).append(named.index(name))
        newest = opset == next(_opsets(case))
        for variable, positions in by_variable.items():
            found.add(variable)
            if variable in before and not newest:
                continue
            every = newest and variable not in before
            for type_string in sorted(allowed.get(variable, ())):
                name = type_string.removeprefix("tensor(").removesuffix(")")
                usable = (
                    type_string.startswith("tensor(") and name in NUMPY and (every or name in OF_OLDER_OPSETS)
                )
                if usable and name not in NOT_MIXED.get(node.op_type, ()):
                    yield Typed(case, tuple(positions), variable, name, opset)
    before |= found


def _load() -> list[Any]:
    cases = [case for case in node_cases() if _usable(case)]
    seen: dict[str, int] = {}
    variables: dict[str, set[str]] = {}
    chosen = []
    for case in cases:
        operator = case.model.graph.node[0].op_type
        seen[operator] = seen.get(operator, 0) + 1
        if seen[operator] <= CASES_OF_AN_OPERATOR:
            chosen.extend(_variants(case, variables.setdefault(operator, set())))
    typed_before: set[tuple[str, ...]] = set()
    return [pytest.param(typed, marks=_marks(typed, typed_before)) for typed in chosen]


def _marks(typed: Typed, before: set[tuple[str, ...]]) -> list[pytest.MarkDecorator]:
    """The first case of an operator with a type is run each time, those in other opsets or shapes with the thorough tests."""
    kind = (typed.case.model.graph.node[0].op_type, typed.variable, typed.type)
    known = kind in before
    before.add(kind)
    return [pytest.mark.thorough] if known else []


def _converted(x: Array, name: str, operator: str, divisor: bool) -> Array:
    """The values of a case as values of the type: fractions become small integers, divisors are not zero."""
    to = NUMPY[name]
    if x.dtype == to:
        return x
    if to == np.bool_:
        return x > x.mean() if x.dtype in FLOATS else x != 0
    if to in FLOATS:
        return x.astype(np.float64).astype(to)
    numbers = x.astype(np.float64)
    if x.dtype in FLOATS:
        numbers = np.rint(numbers * (2 if operator in {"Pow", "ReduceProd", "CumProd"} else 5))
    if to.kind == "u":
        numbers = np.abs(numbers)
    info = np.iinfo(to)
    most = 100 if x.dtype in FLOATS else np.inf
    numbers = np.clip(np.nan_to_num(numbers), max(info.min, -most), min(info.max, most))
    if divisor:
        numbers = np.where(numbers == 0, 1, numbers)
    return numbers.astype(to)


def _wide(x: Array, typed: Typed) -> Array:
    """The values in the form passed to the reference."""
    operator = typed.case.model.graph.node[0].op_type
    return x.astype(np.float64) if x.dtype in FLOATS or operator in INTEGERS_AS_FLOAT else x


def _model(typed: Typed, arrays: list[Array], wide: bool) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(typed.case.model)
    del model.graph.value_info[:]
    model.opset_import[0].version = typed.opset
    for value, array in zip(model.graph.input, arrays, strict=True):
        dtype = _wide(array, typed).dtype if wide else array.dtype
        value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(dtype)
    (node,) = model.graph.node
    schema = onnx.defs.get_schema(node.op_type, typed.opset)
    decide = {n for i, n in enumerate(node.input) if _formal(schema, i).name.lower() in DECIDE_SHAPES}
    for value, array in list(zip(model.graph.input, arrays, strict=True)):
        if value.name in decide or (node.op_type == "ConstantOfShape"):
            model.graph.input.remove(value)
            constant = _wide(array, typed) if wide else array
            model.graph.initializer.append(numpy_helper.from_array(constant, value.name))
    names = [o.name for o in model.graph.output]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return model


@functools.cache
def _tolerance(dtype: np.dtype[Any]) -> float:
    return {"float64": 1e-10, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}.get(dtype.name, 0)


@pytest.mark.parametrize("typed", _load(), ids=str)
def test_type_of_the_schema(typed: Typed) -> None:
    (node,) = typed.case.model.graph.node
    (inputs, _), *_ = typed.case.data_sets
    arrays = [_array(x) for x in inputs]
    for i in typed.positions:
        divides = node.op_type in {"Div", "Mod"} and i == 1
        arrays[i] = _converted(arrays[i], typed.type, node.op_type, divides)
    names = [value.name for value in typed.case.model.graph.input]
    model = _model(typed, arrays, wide=False)
    kept = {value.name for value in model.graph.input}
    feeds = {name: array for name, array in zip(names, arrays, strict=True) if name in kept}
    try:
        found = run_model(model.SerializeToString(), feeds)
    except RuntimeError as error:
        if node.op_type == "ImageDecoder" and "has no kernel" in str(error):
            pytest.skip("images as bytes are not decoded")
        raise

    wide = {name: _wide(x, typed) for name, x in feeds.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = ReferenceEvaluator(_model(typed, arrays, wide=True)).run(None, wide)
        except Exception as error:  # the reference does not have every type: then only check that it runs
            pytest.skip(f"onnx.reference: {error}")
    schema = onnx.defs.get_schema(node.op_type, typed.opset)
    types = {
        _formal(schema, i).type_str: arrays[names.index(n)].dtype
        for i, n in enumerate(node.input)
        if n in names
    }
    stated = {
        n: types.get(schema.outputs[min(o, len(schema.outputs) - 1)].type_str)
        for o, n in enumerate(node.output)
    }
    for output, reference in zip(model.graph.output, expected, strict=True):
        mine, reference = found[output.name], np.asarray(reference)
        assert mine.shape == reference.shape
        assert stated[output.name] in {None, mine.dtype}
        if mine.dtype in FLOATS:
            assert reference.dtype in FLOATS
            with np.errstate(over="ignore"):
                reference = reference.astype(mine.dtype).astype(np.float64)
            limit = _tolerance(mine.dtype)
            if node.op_type in REFERENCE_IN_FLOAT:
                limit = max(limit, 1e-6)
            largest = np.abs(reference[np.isfinite(reference)]).max(initial=0)
            np.testing.assert_allclose(mine.astype(np.float64), reference, limit, limit * largest)
        elif node.op_type in INTEGERS_AS_FLOAT:  # a value just below an integer is truncated to the one below
            np.testing.assert_allclose(mine.astype(np.float64), reference.astype(mine.dtype), atol=1)
        else:
            # NumPy sums small integers in 64 bits.
            assert stated[output.name] or mine.dtype == reference.dtype
            np.testing.assert_array_equal(mine, reference.astype(mine.dtype))


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
