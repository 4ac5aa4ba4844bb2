"""Sequences of tensors and optional values, against onnx.reference; their gradients against finite differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
import ortrain
import pytest
from helpers import check_model_gradient
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from ortrain.errors import OrtrainError

SPECIAL_POINTS = {
    "linear": ["ConcatFromSequence"],
    "not in PyTorch": [
        "SequenceAt",
        "SequenceConstruct",
        "SequenceErase",
        "SequenceInsert",
        "SplitToSequence",
    ],
}

Array = NDArray[Any]

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'


def f32(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def f64(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape)


def session_of(text: str) -> ortrain.InferenceSession:
    return ortrain.InferenceSession(onnx.parser.parse_model(HEADER + text).SerializeToString())


def same(found: Any, expected: Any) -> None:
    if expected is None:
        assert found is None
    elif isinstance(expected, list):
        assert isinstance(found, list)
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            same(a, b)
    else:
        assert found.dtype == np.asarray(expected).dtype
        np.testing.assert_allclose(found, expected, 1e-6, 1e-6)
        assert found.shape == np.shape(expected)


def check(text: str, *feeds: Mapping[str, Any]) -> list[Any]:
    """Run a model with each of some inputs twice, and compare the outputs with those of onnx.reference."""
    session = session_of(text)
    reference = ReferenceEvaluator(onnx.parser.parse_model(HEADER + text))
    results: list[Any] = []
    for feed in [*feeds, *feeds]:
        results = session.run(None, dict(feed))
        for found, expected in zip(results, reference.run(None, dict(feed)), strict=True):
            same(found, expected)
    return results


# ---------------------------------------------------------------------------------------------------------------------
# Making and taking apart.


@pytest.mark.parametrize("position", [None, 0, 1, 2, -1, -2])
def test_insert(position: int | None) -> None:
    """The reference confuses the position of the end with that of the front."""
    at = "" if position is None else ", at"
    constant = "" if position is None else f"<int64 at = {{{position}}}>"
    session = session_of(
        f"g (float[N] a, float[2] b, float[1, 3] c) => (seq(float) s, int64 n) {constant} "
        f"{{ t = SequenceConstruct(a, b) s = SequenceInsert(t, c{at}) n = SequenceLength(s) }}"
    )
    for a in (f32(4), f32(0)):
        feed = {"a": a, "b": f32(2), "c": f32(1, 3)}
        wanted = [a, feed["b"]]
        wanted.insert(2 if position is None else position, feed["c"])
        same(session.run(None, feed), [wanted, np.array(3)])


@pytest.mark.parametrize("position", [None, 0, 1, 2, -1, -3])
def test_erase_and_at(position: int | None) -> None:
    at = 0 if position is None else position
    erase = "" if position is None else ", at"
    check(
        f"g (seq(int64) s) => (seq(int64) t, int64[N] x) <int64 at = {{{at}}}> "
        f"{{ t = SequenceErase(s{erase}) x = SequenceAt(s, at) }}",
        {"s": [np.arange(3), np.arange(5), np.arange(1)]},
    )


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("new_axis", [0, 1])
def test_concat(axis: int, new_axis: int) -> None:
    check(
        f"g (seq(float) s) => (float y) {{ y = ConcatFromSequence<axis = {axis}, new_axis = {new_axis}>(s) }}",
        {"s": [f32(2, 3), f32(2, 3, seed=1), f32(2, 3, seed=2)]},
        {"s": [f32(2, 3)]},
    )
    if not new_axis:
        shapes = [(1, 3), (4, 3), (0, 3)] if axis == 0 else [(3, 1), (3, 4), (3, 0)]
        check(
            f"g (seq(float) s) => (float y) {{ y = ConcatFromSequence<axis = {axis}>(s) }}",
            {"s": [f32(*shape) for shape in shapes]},
        )


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("split", [None, 2, 4, [1, 3], [4, 0]])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_split(axis: int, split: Any, keepdims: int) -> None:
    x = f32(4, 4, 2) if axis >= 0 else f32(2, 4)
    form = "A, B, C" if axis >= 0 else "A, B"
    if split is None:
        text = f"g (float[{form}] x) => (seq(float) s) {{ s = SplitToSequence<axis = {axis}, keepdims = {keepdims}>(x) }}"
        wanted = [part if keepdims else part.squeeze(axis) for part in np.split(x, x.shape[axis], axis)]
    else:
        shape = "" if isinstance(split, int) else f"[{len(split)}]"
        values = ", ".join(map(str, np.atleast_1d(split)))
        text = (
            f"g (float[{form}] x) => (seq(float) s) <int64{shape} split = {{{values}}}> "
            f"{{ s = SplitToSequence<axis = {axis}, keepdims = {keepdims}>(x, split) }}"
        )
        at = np.cumsum(split)[:-1] if isinstance(split, list) else np.arange(split, x.shape[axis], split)
        wanted = list(np.split(x, at, axis))
    same(session_of(text).run(None, {"x": x})[0], wanted)


@pytest.mark.parametrize(
    "kind", ["float16", "float32", "float64", "bool", "uint8", "int32", "complex64", "bfloat16"]
)
def test_elements_have_any_type(kind: str) -> None:
    import ml_dtypes

    dtype = np.dtype(ml_dtypes.bfloat16) if kind == "bfloat16" else np.dtype(kind)
    number = helper.np_dtype_to_tensor_dtype(dtype)
    nodes = [
        helper.make_node("SequenceEmpty", [], ["none"], dtype=number),
        helper.make_node("SequenceInsert", ["none", "x"], ["one"]),
        helper.make_node("SequenceInsert", ["one", "x"], ["two"]),
        helper.make_node("ConcatFromSequence", ["two"], ["y"], axis=0),
        helper.make_node("SplitToSequence", ["y"], ["s"], axis=1),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", number, [2, 3])],
        [helper.make_tensor_value_info("y", number, None), helper.make_tensor_sequence_value_info("s", number, None)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.arange(6).reshape(2, 3).astype(dtype)
    y, s = ortrain.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(y, np.concatenate([x, x]))
    for k, part in enumerate(s):
        np.testing.assert_array_equal(part, np.concatenate([x, x])[:, k : k + 1])


def test_an_element_stays_what_it_was() -> None:
    """Memory of intermediate values is reused; that of elements is not."""
    session = session_of(
        "g (float[N] x) => (seq(float) s) "
        "{ a = Exp(x) t = SequenceConstruct(a) b = Neg(a) c = Exp(b) u = SequenceInsert(t, c) d = Mul(c, c) "
        "s = SequenceInsert(u, d) }"
    )
    first = session.run(None, {"x": f32(5)})[0]
    kept = [part.copy() for part in first]
    session.run(None, {"x": f32(5, seed=1)})
    for a, b in zip(first, kept, strict=True):
        np.testing.assert_array_equal(a, b)


# ---------------------------------------------------------------------------------------------------------------------
# Control flow.

APPEND = """
g (int64 n, float[N] x) => (seq(float) s, float[M] y)
<bool yes = {1}, int64[1] one = {1}>
{
  none = SequenceEmpty()
  v, s = Loop (n, yes, x, none) <
    body = b (int64 i, bool c, float[K] v, seq(float) s) => (d, w, t) {
      d = Identity(c)
      w = Concat<axis = 0>(v, v)
      t = SequenceInsert(s, v)
    }
  >
  t = SequenceInsert(s, x)
  y = ConcatFromSequence<axis = 0>(t)
}
"""


def test_loops_carry_sequences() -> None:
    feeds = [{"n": np.array(n), "x": f32(2)} for n in (3, 0, 1, 5)]
    check(APPEND, *feeds)


def test_a_sequence_may_pass_through_a_loop_and_be_read_from_around_it() -> None:
    check(
        """
        g (seq(float) s, float[2] x) => (seq(float) t, float[2] y)
        <bool yes = {1}>
        {
          n = SequenceLength(s)
          t, y = Loop (n, yes, s, x) <
            body = b (int64 i, bool c, seq(float) u, float[2] v) => (d, u, w) {
              d = Identity(c)
              e = SequenceAt(s, i)
              w = Add(v, e)
            }
          >
        }
        """,
        {"s": [f32(2, seed=k) for k in range(4)], "x": f32(2)},
        {"s": [], "x": f32(2)},
    )


def test_branches_give_sequences() -> None:
    feeds = [{"c": np.array(c), "x": f32(2), "s": [f32(3)]} for c in (True, False)]
    check(
        """
        g (bool c, float[2] x, seq(float) s) => (seq(float) t)
        {
          t = If (c) <
            then_branch = a () => (u) { u = SequenceInsert(s, x) },
            else_branch = b () => (u) { u = Identity(s) }
          >
        }
        """,
        *feeds,
    )


def test_a_condition_that_is_known_chooses_a_branch_with_a_sequence() -> None:
    check(
        """
        g (float[2] x) => (seq(float) t)
        {
          c = Constant<value = bool {1}>()
          t = If (c) <
            then_branch = a () => (u) { u = SequenceConstruct(x, x) },
            else_branch = b () => (u) { u = SequenceConstruct(x) }
          >
        }
        """,
        {"x": f32(2)},
    )


def test_maps() -> None:
    session = session_of(
        """
        g (seq(float) s, float[1] x) => (seq(float) t, seq(int64) u)
        {
          t, u = SequenceMap (s, x) <
            body = b (float[K] e, float[1] y) => (float[K] z, int64[1] shape) { z = Add(e, y) shape = Shape(e) }
          >
        }
        """
    )
    for count in (3, 0, 1):
        s, x = [f32(k + 1, seed=k) for k in range(count)], f32(1)
        wanted = [[e + x for e in s], [np.array(e.shape) for e in s]]
        same(session.run(None, {"s": s, "x": x}), wanted)


# ---------------------------------------------------------------------------------------------------------------------
# Optional values.


def test_optional_inputs_may_be_left_out() -> None:
    session = session_of(
        """
        g (optional(float[2]) o, float[2] x) => (bool has, float[2] y)
        {
          has = OptionalHasElement(o)
          y = If (has) <
            then_branch = a () => (z) { z = OptionalGetElement(o) },
            else_branch = b () => (z) { z = Neg(x) }
          >
        }
        """
    )
    x, given = f32(2), f32(2, seed=1)
    for feed, has, wanted in (
        ({"o": given}, True, given), ({"o": None}, False, -x), ({}, False, -x), ({"o": given}, True, given),
    ):  # fmt: skip
        found = session.run(None, {"x": x, **feed})
        assert found[0].item() is has
        np.testing.assert_array_equal(found[1], wanted)
    assert session.get_inputs()[0].type == "optional(tensor(float))"


def test_an_optional_output_may_be_nothing() -> None:
    kind = helper.make_optional_type_proto(
        helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, None))
    )
    nodes = [helper.make_node("Optional", [], ["o"], type=kind.optional_type.elem_type),
             helper.make_node("SequenceConstruct", ["x"], ["s"]),
             helper.make_node("Optional", ["s"], ["p"])]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, [2])],
        [helper.make_value_info("o", kind), helper.make_value_info("p", kind)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = ortrain.InferenceSession(model.SerializeToString())
    x = f32(2)
    same(session.run(None, {"x": x}), [None, [x]])
    assert [o.type for o in session.get_outputs()] == ["optional(seq(tensor(float)))"] * 2


# ---------------------------------------------------------------------------------------------------------------------
# Gradients.


def check_gradient(text: str, feeds: Mapping[str, Array], wrt: Sequence[str]) -> dict[str, Array]:
    return check_model_gradient(HEADER + text, feeds, wrt)


LOSS = "z = Mul(y, y) w = Mul(z, k) loss = ReduceSum<keepdims = 0>(w)"


def test_gradient_of_construct_and_at() -> None:
    """An element that is read twice, one that is read by a position from the end, and one that is not read."""
    check_gradient(
        f"g (double[3] a, double[3] b, double[3] c, double[3] k) => (double loss) <int64 one = {{1}}, int64 last = {{-3}}> "
        "{ s = SequenceConstruct(a, b, c) p = SequenceAt(s, one) q = SequenceAt(s, one) r = SequenceAt(s, last) "
        f"u = Mul(p, q) y = Mul(u, r) {LOSS} }}",
        {"a": f64(3), "b": f64(3, seed=1), "c": f64(3, seed=2), "k": f64(3, seed=3)},
        ["a", "b", "c"],
    )


@pytest.mark.parametrize("position", ["", ", zero", ", one", ", minus"])
@pytest.mark.parametrize("erased", ["", ", zero", ", one", ", minus"])
def test_gradient_of_insert_and_erase(position: str, erased: str) -> None:
    check_gradient(
        "g (double[2] a, double[2] b, double[2] c, double[2, 2] k) => (double loss) "
        "<int64 zero = {0}, int64 one = {1}, int32 minus = {-2}> "
        f"{{ s = SequenceConstruct(a, b) t = SequenceInsert(s, c{position}) u = SequenceErase(t{erased}) "
        f"y = ConcatFromSequence<axis = 0, new_axis = 1>(u) {LOSS} }}",
        {"a": f64(2), "b": f64(2, seed=1), "c": f64(2, seed=2), "k": f64(2, 2, seed=3)},
        ["a", "b", "c"],
    )


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("split", ["", ", two", ", some"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_gradient_of_split_and_concat(axis: int, split: str, keepdims: int) -> None:
    stacks = int(not split and not keepdims)
    check_gradient(
        "g (double[5, 5] x, double[5, 5] k) => (double loss) <int64 two = {2}, int64[3] some = {1, 0, 4}> "
        f"{{ s = SplitToSequence<axis = {axis}, keepdims = {keepdims}>(x{split}) t = Identity(s) "
        f"y = ConcatFromSequence<axis = {axis}, new_axis = {stacks}>(t) {LOSS} }}",
        {"x": f64(5, 5), "k": f64(5, 5, seed=1)},
        ["x"],
    )


def test_gradient_through_a_loop_that_gathers_a_sequence() -> None:
    check_gradient(
        f"""
        g (int64 n, double[2] x, double[2] a, double k) => (double loss)
        <bool yes = {{1}}>
        {{
          first = SequenceConstruct(a)
          v, s = Loop (n, yes, x, first) <
            body = b (int64 i, bool c, double[K] v, seq(double) s) => (d, w, t) {{
              d = Identity(c)
              u = Mul(v, v)
              w = Concat<axis = 0>(u, a)
              t = SequenceInsert(s, v)
            }}
          >
          y = ConcatFromSequence<axis = 0>(s)
          {LOSS}
        }}
        """,
        {"n": np.array(3), "x": f64(2), "a": f64(2, seed=1), "k": np.array(0.7)},
        ["x", "a"],
    )


def test_gradient_of_a_sequence_around_a_loop() -> None:
    check_gradient(
        f"""
        g (double[3, 2] x, double[2] v, double k) => (double loss)
        <bool yes = {{1}}>
        {{
          s = SplitToSequence<axis = 0, keepdims = 0>(x)
          n = SequenceLength(s)
          y = Loop (n, yes, v) <
            body = b (int64 i, bool c, double[2] v) => (d, w) {{
              d = Identity(c)
              e = SequenceAt(s, i)
              f = Mul(v, e)
              w = Add(f, e)
            }}
          >
          {LOSS}
        }}
        """,
        {"x": f64(3, 2), "v": f64(2, seed=1), "k": np.array(0.7)},
        ["x", "v"],
    )


@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_gradient_of_a_sequence_around_a_scan(direction: int, axis: int) -> None:
    check_gradient(
        f"""
        g (double[2, 3] x, double[3, 3] a, double[3] v, double k) => (double loss)
        <int64 one = {{1}}>
        {{
          s = SplitToSequence<axis = 0, keepdims = 0>(x)
          y, all = Scan<num_scan_inputs = 1, scan_input_axes = [{axis}], scan_input_directions = [{direction}],
                        body = b (double[3] v, double[3] r) => (double[3] w, double[3] o) {{
              e = SequenceAt(s, one)
              f = Mul(v, e)
              w = Add(f, r)
              o = Mul(w, r)
            }}>(v, a)
          u = ReduceSum<keepdims = 0>(all)
          kk = Mul(k, u)
          z = Mul(y, y) w = Mul(z, kk) loss = ReduceSum<keepdims = 0>(w)
        }}
        """,
        {"x": f64(2, 3), "a": f64(3, 3, seed=2), "v": f64(3, seed=1), "k": np.array(0.7)},
        ["x", "v", "a"],
    )


@pytest.mark.parametrize("condition", [True, False])
def test_gradient_through_branches(condition: bool) -> None:
    check_gradient(
        f"""
        g (bool c, double[2] x, double[2] a, double k) => (double loss)
        {{
          s = SequenceConstruct(x, a)
          t = If (c) <
            then_branch = p () => (u) {{ m = Mul(a, x) u = SequenceInsert(s, m) }},
            else_branch = q () => (u) {{ u = SequenceConstruct(x, x) }}
          >
          y = ConcatFromSequence<axis = 0>(t)
          {LOSS}
        }}
        """,
        {"c": np.array(condition), "x": f64(2), "a": f64(2, seed=1), "k": np.array(0.7)},
        ["x", "a"],
    )


def test_gradient_of_a_map() -> None:
    check_gradient(
        f"""
        g (double[3, 2] x, double[1] a, double k) => (double loss)
        {{
          s = SplitToSequence<axis = 0>(x)
          t = SequenceMap (s, a) <
            body = b (double[1, 2] e, double[1] f) => (double[1, 2] z) {{ m = Mul(e, f) z = Mul(m, e) }}
          >
          y = ConcatFromSequence<axis = 0>(t)
          {LOSS}
        }}
        """,
        {"x": f64(3, 2), "a": f64(1, seed=1), "k": np.array(0.7)},
        ["x", "a"],
    )


def test_gradient_of_an_optional_value() -> None:
    check_gradient(
        f"g (double[2] x, double[2] k) => (double loss) {{ o = Optional(x) y = OptionalGetElement(o) {LOSS} }}",
        {"x": f64(2), "k": f64(2, seed=1)},
        ["x"],
    )


# ---------------------------------------------------------------------------------------------------------------------
# Errors are clear, and are raised when a model is loaded if they can be detected then.


def test_wrong_types_are_named_at_load_all_at_once() -> None:
    with pytest.raises(OrtrainError) as caught:
        session_of(
            """
            g (float[2] x, int64[2] i, seq(float) s) => (seq(float) t, float[2] y)
            {
              a = SequenceConstruct(x, i)
              t = SequenceInsert(s, i)
              y = Add(s, x)
              n = SequenceLength(x)
              b = NonZero(s)
            }
            """
        )
    message = str(caught.value)
    for part in (
        r"(SequenceConstruct): its inputs must have the same type, found float32 and int64",
        r"(SequenceInsert): input 1 ('i') has type int64, expected float32, the type of the sequence",
        r"(Add): one of its inputs is a sequence",
        r"(SequenceLength): input 0 ('x') is a tensor, expected a sequence",
        r"(NonZero): one of its inputs is a sequence",
    ):
        assert part in message, message


def test_a_model_reads_and_returns_strings() -> None:
    nodes = [
        helper.make_node("LabelEncoder", ["x"], ["y"], name="labels", domain="ai.onnx.ml", keys_strings=["a"], values_int64s=[1]),
        helper.make_node("Cast", ["y"], ["z"], name="cast", to=TensorProto.STRING),
    ]  # fmt: skip
    values = [helper.make_tensor_value_info(n, TensorProto.STRING, [2]) for n in "xz"]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    model = helper.make_model(
        helper.make_graph(nodes, "g", values[:1], values[1:]), opset_imports=opsets, ir_version=8
    )
    (z,) = ortrain.InferenceSession(model.SerializeToString()).run(None, {"x": np.array(["a", "b"], object)})
    assert list(z) == ["1", "-1"]


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ("y = SequenceAt(s, at)", "position 5 is outside a sequence of 2 elements"),
        ("y = SequenceErase(s, at)", "position 5 is outside a sequence of 2 elements"),
        ("y = SequenceInsert(s, x, at)", "position 5 is outside a sequence of 2 elements"),
        ("y = ConcatFromSequence<axis = 1>(s)", r"element 1 of shape \[3, 1\] does not match element 0 of shape \[2, 1\]"),
        ("y = ConcatFromSequence<axis = 3>(s)", "axis"),
        ("t = SequenceEmpty() y = ConcatFromSequence<axis = 0>(t)", "the sequence is empty"),
        ("y = SplitToSequence<axis = 0>(x, split)", "expected lengths that add up to 2, the size of axis 0"),
        ("y = SplitToSequence<axis = 0>(x, zero)", "the length of a piece must be positive, found 0"),
    ],
)  # fmt: skip
def test_wrong_values_are_named_by_the_run(nodes: str, reason: str) -> None:
    kind = "float" if "y = Concat" in nodes or "y = SequenceAt" in nodes else "seq(float)"
    session = session_of(
        f"g (seq(float) s, float[2, 1] x) => ({kind} y) "
        f"<int64 at = {{5}}, int64[2] split = {{1, 3}}, int64 zero = {{0}}> {{ {nodes} }}"
    )
    with pytest.raises(OrtrainError, match=reason):
        session.run(None, {"s": [f32(2, 1), f32(3, 1)], "x": f32(2, 1)})


def test_wrong_inputs_are_named() -> None:
    session = session_of("g (seq(float) s) => (int64 n) { n = SequenceLength(s) }")
    with pytest.raises(OrtrainError, match="expected a list of arrays, found ndarray"):
        session.run(None, {"s": f32(2)})
    with pytest.raises(OrtrainError, match="expected float32, found int64"):
        session.run(None, {"s": [f32(2), np.arange(3)]})
    with pytest.raises(OrtrainError, match="'s' was not given"):
        session.run(None, {})
    tensor = ortrain.OrtValue.ortvalue_from_numpy(f32(2))
    with pytest.raises(OrtrainError, match=r"expected a sequence of float32\[\], found float32\[2\]"):
        session.run_with_ort_values(None, {"s": tensor})


def test_a_sequence_as_a_value() -> None:
    parts = [f32(2), f32(3)]
    value = ortrain.OrtValue.ortvalue_from_sequence([ortrain.OrtValue.ortvalue_from_numpy(p) for p in parts])
    assert value.is_tensor_sequence()
    assert not value.is_tensor()
    assert value.has_value()
    same([element.numpy() for element in value.elements()], parts)
    session = session_of("g (seq(float) s) => (seq(float) t) { t = Identity(s) }")
    (found,) = session.run_with_ort_values(None, {"s": value})
    same([element.numpy() for element in found.elements()], parts)
    assert session.get_inputs()[0].type == "seq(tensor(float))"
    with pytest.raises(OrtrainError, match="a sequence of 2 float32 tensors, expected a tensor"):
        value.numpy()
