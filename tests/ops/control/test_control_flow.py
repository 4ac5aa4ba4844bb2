"""If, Loop and Scan: forward against onnx.reference, gradients against finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import (
    Array,
    check_model,
    check_model_gradient,
    gradient_model,
    model_of,
    run_in_turn,
    run_model,
    uniform,
)

SPECIAL_POINTS = {"not in PyTorch": ["If", "Loop", "Scan"]}

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'
YES, NO = np.array(True), np.array(False)


def f32(*shape: int, seed: int = 0) -> Array:
    return uniform(*shape, dtype=np.float32, seed=seed)


# ---------------------------------------------------------------------------------------------------------------------
# If


def test_if_takes_the_branch_of_the_run() -> None:
    check_model(
        HEADER
        + """
        g (bool c, float[N, M] x, float[M] w) => (y)
        {
          h = Mul(x, w)
          y = If (c) <
            then_branch = t () => (r) { s = Add(h, x) r = Relu(s) },
            else_branch = e () => (r2) { r2 = Neg(h) }
          >
        }
        """,
        [
            {"c": c, "x": f32(rows, 3), "w": f32(3, seed=1)}
            for c, rows in [(YES, 2), (NO, 2), (YES, 5), (YES, 2), (NO, 5)]
        ],
    )


def test_branches_may_differ_in_shape_and_rank() -> None:
    check_model(
        HEADER
        + """
        g (bool c, float[N, M] x) => (y, size)
        <int64[1] minus = {-1}>
        {
          y = If (c) <
            then_branch = t () => (r) { r = Reshape(x, minus) },
            else_branch = e () => (r) { r = Identity(x) }
          >
          size = Shape(y)
        }
        """,
        [{"c": c, "x": f32(2, 3)} for c in (YES, NO, YES)],
    )


def test_a_branch_may_be_a_value_of_the_graph_around_it() -> None:
    check_model(
        HEADER
        + """
        g (bool c, float[N] x) => (y, z)
        <float[1] one = {1}>
        {
          h = Add(x, one)
          y, z = If (c) <
            then_branch = t () => (h, one) { },
            else_branch = e () => (x, k) { k = Constant<value = float[1] {7}>() }
          >
        }
        """,
        [{"c": YES, "x": f32(3)}, {"c": NO, "x": f32(3)}],
    )


def test_ifs_may_be_nested_and_share_names() -> None:
    check_model(
        HEADER
        + """
        g (bool a, bool b, float[N] x) => (y)
        {
          y = If (a) <
            then_branch = t () => (r) {
              r = If (b) <
                then_branch = tt () => (q) { p = Add(x, x) q = Mul(p, x) },
                else_branch = te () => (q) { p = Mul(x, x) q = Mul(p, x) }
              >
            },
            else_branch = e () => (r) { p = Exp(x) r = Neg(p) }
          >
        }
        """,
        [{"a": a, "b": b, "x": f32(4)} for a in (YES, NO) for b in (YES, NO)],
    )


def test_a_condition_that_follows_from_shapes_chooses_a_branch() -> None:
    check_model(
        HEADER
        + """
        g (float[N, M] x) => (y)
        <int64[1] one = {1}, int64 zero = {0}>
        {
          size = Shape<start = 1, end = 2>(x)
          same = Equal(size, one)
          c = Squeeze(same)
          y = If (c) <
            then_branch = t () => (r) { r = Squeeze(x, one) },
            else_branch = e () => (r) { r = Identity(x) }
          >
        }
        """,
        [{"x": f32(3, 1)}, {"x": f32(3, 2)}],
    )


def test_a_condition_that_is_no_bool_is_rejected_with_the_node() -> None:
    model = model_of(
        HEADER
        + """
        g (float[1] c, float[N] x) => (y)
        {
          [choice] y = If (c) <
            then_branch = t () => (r) { r = Neg(x) },
            else_branch = e () => (r) { r = Exp(x) }
          >
        }
        """
    )
    with pytest.raises(RuntimeError, match=r"choice.*must be a single bool"):
        run_model(model, {"c": f32(1), "x": f32(2)})


# ---------------------------------------------------------------------------------------------------------------------
# Loop

FIBONACCI = (
    HEADER
    + """
    g (int64 n, bool c, double[N] a, double[N] b) => (last, sums)
    {
      x, last, sums = Loop (n, c, a, b) <
        body = step (int64 i, bool go, double[N] u, double[N] v) => (on, v2, w, w2) {
          on = Identity(go)
          v2 = Identity(v)
          w = Add(u, v)
          w2 = Identity(w)
        }
      >
    }
    """
)


def test_loop_carries_values_and_stacks_others() -> None:
    feeds = {"a": uniform(3), "b": uniform(3, seed=1), "c": YES}
    check_model(FIBONACCI, [feeds | {"n": np.int64(n)} for n in (1, 5, 2)])


def test_a_loop_of_no_iterations_gives_what_it_got() -> None:
    feeds = {"a": uniform(3), "b": uniform(3, seed=1)}
    for n, c in ((0, YES), (4, NO), (-1, YES)):
        found = run_model(model_of(FIBONACCI), feeds | {"n": np.int64(n), "c": c})
        np.testing.assert_array_equal(found["last"], feeds["b"])
        assert found["sums"].shape[0] == 0


def test_a_loop_ends_when_its_condition_fails() -> None:
    # Doubles until the sum passes a limit; there is no trip count.
    model = (
        HEADER
        + """
        g (double[N] x, double limit) => (y, sums, steps)
        <bool yes = {1}>
        {
          y, sums, steps = Loop ("", yes, x) <
            body = step (int64 i, bool go, double[N] u) => (on, v, total, i2) {
              v = Add(u, u)
              total = ReduceSum<keepdims = 0>(v)
              on = Less(total, limit)
              i2 = Identity(i)
            }
          >
        }
        """
    )
    x = np.array([1.0, 2.0])
    for limit in (10.0, 100.0, 1.0):
        found = run_model(model_of(model), {"x": x, "limit": np.array(limit)})
        y, sums = x, []
        while not sums or sums[-1] < limit:
            y = 2 * y
            sums.append(y.sum())
        np.testing.assert_array_equal(found["y"], y)
        np.testing.assert_array_equal(found["sums"], sums)
        np.testing.assert_array_equal(found["steps"], np.arange(len(sums)))


GROWING = (
    HEADER
    + """
    g (int64 n, double[K] x) => (loss, y)
    <bool yes = {1}, double half = {0.5}>
    {
      y = Loop (n, yes, x) <
        body = step (int64 i, bool go, u) => (on, v) {
          on = Identity(go)
          s = Mul(u, half)
          t = Sin(s)
          v = Concat<axis = 0>(t, x)
        }
      >
      q = Mul(y, y)
      loss = ReduceSum<keepdims = 0>(q)
    }
    """
)


def test_what_a_loop_carries_may_grow() -> None:
    model = model_of(GROWING)
    x = uniform(3)
    for found, n in zip(
        run_in_turn(model, [{"n": np.int64(n), "x": x} for n in (0, 1, 4)]), (0, 1, 4), strict=True
    ):
        y = x
        for _ in range(n):
            y = np.concatenate([np.sin(y / 2), x])
        np.testing.assert_allclose(found["y"], y, 1e-12)


def test_slices_of_different_shapes_cannot_be_stacked() -> None:
    model = model_of(
        HEADER
        + """
        g (int64 n, double[K] x) => (y, all)
        <bool yes = {1}>
        {
          [grow] y, all = Loop (n, yes, x) <
            body = step (int64 i, bool go, u) => (on, v, w) {
              on = Identity(go)
              v = Concat<axis = 0>(u, u)
              w = Identity(v)
            }
          >
        }
        """
    )
    with pytest.raises(RuntimeError, match=r"grow.*\[6\].*iteration 0.*\[12\].*iteration 1"):
        run_model(model, {"n": np.int64(2), "x": uniform(3)})


def test_an_error_in_a_body_names_its_node() -> None:
    model = model_of(
        HEADER
        + """
        g (int64 n, double[K] x, double[3] w) => (y)
        <bool yes = {1}>
        {
          y = Loop (n, yes, x) <
            body = step (int64 i, bool go, u) => (on, v) {
              on = Identity(go)
              [inside] v = Add(u, w)
            }
          >
        }
        """
    )
    with pytest.raises(RuntimeError, match="inside"):
        run_model(model, {"n": np.int64(2), "x": uniform(2), "w": uniform(3)})


NESTED = (
    HEADER
    + """
    g (int64 n, int64 m, double[K] x, double[K] w) => (loss, y)
    <bool yes = {1}, double small = {0.3}>
    {
      y, rows = Loop (n, yes, x) <
        body = outer (int64 i, bool go, double[K] u) => (on, v, row) {
          on = Identity(go)
          a = Loop (m, go, u) <
            body = inner (int64 j, bool go2, double[K] p) => (on2, q) {
              on2 = Identity(go2)
              s = Mul(p, w)
              t = Tanh(s)
              q = Add(t, u)
            }
          >
          v = Mul(a, small)
          row = Mul(v, w)
        }
      >
      sq = Mul(rows, rows)
      l1 = ReduceSum<keepdims = 0>(sq)
      l2 = ReduceSum<keepdims = 0>(y)
      loss = Add(l1, l2)
    }
    """
)


def test_loops_may_be_nested() -> None:
    feeds = {"x": uniform(3), "w": uniform(3, seed=1)}
    check_model(NESTED, [feeds | {"n": np.int64(n), "m": np.int64(m)} for n, m in ((2, 3), (1, 1), (3, 2))])


# ---------------------------------------------------------------------------------------------------------------------
# Scan

SCAN = (
    HEADER
    + """
    g (double[H] h0, double[T, H] x, double[H] w) => (loss, h, all)
    {
      h, all = Scan <num_scan_inputs = 1, body = step (double[H] h_in, double[H] x_t) => (h_out, y_t) {
        a = Mul(h_in, w)
        b = Add(a, x_t)
        h_out = Tanh(b)
        y_t = Mul(h_out, x_t)
      }> (h0, x)
      sq = Mul(all, all)
      l1 = ReduceSum<keepdims = 0>(sq)
      l2 = ReduceSum<keepdims = 0>(h)
      loss = Add(l1, l2)
    }
    """
)


def test_scan_runs_over_the_slices_of_its_inputs() -> None:
    check_model(SCAN, [{"h0": uniform(3), "x": uniform(t, 3), "w": uniform(3, seed=1)} for t in (1, 4, 2)])


def test_scan_of_nothing_gives_the_state_it_got() -> None:
    h0 = uniform(3)
    found = run_model(model_of(SCAN), {"h0": h0, "x": np.zeros((0, 3)), "w": uniform(3)})
    np.testing.assert_array_equal(found["h"], h0)
    assert found["all"].shape == (0, 3)


def scan_model(attributes: str) -> str:
    """A scan over two inputs along axes other than the first, or backwards."""
    return (
        HEADER
        + f"""
        g (double[2] h0, double[2, T] a, double[3, 2, T] b) => (loss, h, y, z)
        {{
          h, y, z = Scan <num_scan_inputs = 2, {attributes},
            body = step (double[2] h_in, a_t, b_t) => (h_out, y_t, z_t) {{
              s = ReduceSum<keepdims = 0>(b_t)
              p = Mul(a_t, s)
              h_out = Add(h_in, p)
              y_t = Mul(h_out, h_in)
              z_t = Mul(b_t, b_t)
            }}> (h0, a, b)
          l1 = ReduceSum<keepdims = 0>(y)
          l2 = ReduceSum<keepdims = 0>(z)
          l3 = ReduceSum<keepdims = 0>(h)
          loss = Sum(l1, l2, l3)
        }}
        """
    )


def scan_inputs() -> dict[str, Array]:
    h0, a, b = uniform(2), uniform(2, 4, seed=1), uniform(3, 2, 4, seed=2)
    return {"h0": h0, "a": a, "b": b}


def scan_expected(feeds: dict[str, Array], backwards: tuple[bool, bool, bool, bool]) -> dict[str, Array]:
    a, b = np.moveaxis(feeds["a"], 1, 0), np.moveaxis(feeds["b"], 2, 0)
    a, b = (v[::-1] if back else v for v, back in zip((a, b), backwards[:2], strict=True))
    h, y, z = feeds["h0"], [], []
    for a_t, b_t in zip(a, b, strict=True):
        before, h = h, h + a_t * b_t.sum()
        y.append(h * before)
        z.append(b_t * b_t)
    y, z = (v[::-1] if back else v for v, back in zip((y, z), backwards[2:], strict=True))
    return {"h": h, "y": np.stack(y, 1), "z": np.stack(z, 1)}


DIRECTIONS = [(0, 0, 0, 0), (1, 0, 0, 1), (0, 1, 1, 0), (1, 1, 1, 1)]


@pytest.mark.parametrize("directions", DIRECTIONS)
def test_scan_along_other_axes_and_backwards(directions: tuple[int, int, int, int]) -> None:
    d = directions
    text = scan_model(
        "scan_input_axes = [1, -1], scan_output_axes = [1, -2], "
        f"scan_input_directions = [{d[0]}, {d[1]}], scan_output_directions = [{d[2]}, {d[3]}]"
    )
    feeds = scan_inputs()
    found = run_model(model_of(text), feeds)
    for name, expected in scan_expected(feeds, (bool(d[0]), bool(d[1]), bool(d[2]), bool(d[3]))).items():
        np.testing.assert_allclose(found[name], expected, 1e-12, err_msg=name)
    check_model_gradient(text, feeds, ["h0", "a", "b"])


# ---------------------------------------------------------------------------------------------------------------------
# Gradients

IF = (
    HEADER
    + """
    g (bool c, double[N, M] x, double[M] w, double[M] b) => (loss)
    {
      h = Mul(x, w)
      y = If (c) <
        then_branch = t () => (r) { s = Sin(h) r = Mul(s, h) },
        else_branch = e () => (r) { s = Add(h, b) r = Exp(s) }
      >
      loss = ReduceSum<keepdims = 0>(y)
    }
    """
)


@pytest.mark.parametrize("condition", [YES, NO])
def test_the_gradient_of_if_goes_through_the_branch_that_was_taken(condition: Array) -> None:
    feeds = {"c": condition, "x": uniform(2, 3), "w": uniform(3, seed=1), "b": uniform(3, seed=2)}
    gradients = check_model_gradient(IF, feeds, ["x", "w", "b"])
    assert bool(condition) == (not gradients["b"].any())


@pytest.mark.parametrize("n", [0, 1, 4])
def test_the_gradient_of_loop(n: int) -> None:
    head = FIBONACCI.replace("=> (last, sums)", "=> (loss)").rpartition("}")[0]
    model = (
        head
        + """
          square = Mul(sums, sums)
          l1 = ReduceSum<keepdims = 0>(square)
          cube = Mul(last, last)
          l2 = ReduceSum<keepdims = 0>(cube)
          loss = Add(l1, l2)
        }
        """
    )
    check_model_gradient(
        model, {"n": np.int64(n), "c": YES, "a": uniform(3), "b": uniform(3, seed=1)}, ["a", "b"]
    )


@pytest.mark.parametrize(("n", "m"), [(0, 2), (2, 0), (1, 1), (2, 3)])
def test_the_gradient_of_nested_loops(n: int, m: int) -> None:
    check_model_gradient(
        NESTED, {"n": np.int64(n), "m": np.int64(m), "x": uniform(3), "w": uniform(3, seed=1)}, ["x", "w"]
    )


@pytest.mark.parametrize("n", [0, 1, 3])
def test_the_gradient_of_a_loop_whose_values_grow(n: int) -> None:
    check_model_gradient(GROWING, {"n": np.int64(n), "x": uniform(3)}, ["x"])


@pytest.mark.parametrize("length", [0, 1, 4])
def test_the_gradient_of_scan(length: int) -> None:
    check_model_gradient(
        SCAN, {"h0": uniform(3), "x": uniform(length, 3), "w": uniform(3, seed=1)}, ["h0", "x", "w"]
    )


def test_the_gradient_of_a_loop_that_ends_by_itself() -> None:
    model = (
        HEADER
        + """
        g (double[N] x, double[N] w) => (loss)
        <bool yes = {1}, double limit = {20}>
        {
          y = Loop ("", yes, x) <
            body = step (int64 i, bool go, double[N] u) => (on, v) {
              e = Exp(w)
              v = Mul(u, e)
              total = ReduceSum<keepdims = 0>(v)
              on = Less(total, limit)
            }
          >
          loss = ReduceSum<keepdims = 0>(y)
        }
        """
    )
    check_model_gradient(model, {"x": np.array([1.0, 2.0]), "w": np.array([0.5, 0.7])}, ["x", "w"])


def test_the_gradient_of_an_if_inside_a_loop_with_a_loop_inside() -> None:
    model = (
        HEADER
        + """
        g (double[N] x, double[N] w) => (loss)
        <bool yes = {1}, int64 n = {4}, int64 two = {2}, int64 zero = {0}>
        {
          y = Loop (n, yes, x) <
            body = step (int64 i, bool go, double[N] u) => (on, v) {
              on = Identity(go)
              r = Mod(i, two)
              even = Equal(r, zero)
              v = If (even) <
                then_branch = t () => (p) { a = Mul(u, w) p = Sin(a) },
                else_branch = e () => (q) {
                  q = Loop (i, go, u) <
                    body = inner (int64 j, bool g2, double[N] k) => (o2, l) {
                      o2 = Identity(g2)
                      m = Tanh(k)
                      l = Mul(m, u)
                    }
                  >
                }
              >
            }
          >
          loss = ReduceSum<keepdims = 0>(y)
        }
        """
    )
    check_model_gradient(
        model, {"x": uniform(3, low=0.4, high=1), "w": uniform(3, low=1, high=2)}, ["x", "w"]
    )


@pytest.mark.parametrize(
    ("text", "feeds", "wrt"),
    [
        (
            IF,
            {"c": NO, "x": uniform(2, 3), "w": uniform(3, seed=1), "b": uniform(3, seed=2)},
            ["x", "w", "b"],
        ),
        (SCAN, {"h0": uniform(3), "x": uniform(4, 3), "w": uniform(3, seed=1)}, ["h0", "x", "w"]),
        (
            NESTED,
            {"n": np.array(2), "m": np.array(3), "x": uniform(3), "w": uniform(3, seed=1)},
            ["x", "w"],
        ),
    ],
    ids=["if", "scan", "nested loops"],
)
def test_gradients_through_control_flow_are_made_of_operators_of_onnx(
    text: str, feeds: dict[str, Array], wrt: list[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = gradient_model(model_of(text.replace("Tanh", "Sin")), wrt, "loss")
    other = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [f"{name}_grad" for name in wrt]
    ours = run_model(model, feeds)
    for name, expected in zip(names, other.run(names, feeds), strict=True):
        np.testing.assert_allclose(ours[name], expected, 1e-12, 1e-14, err_msg=name)


def dropout_in_a_loop(nodes: str) -> str:
    return (
        HEADER
        + f"""
        g (double[N] x, double[N] w) => (loss, masks, y)
        <bool yes = {{1}}, int64 n = {{3}}, double half = {{0.5}}>
        {{
          y, masks = Loop (n, yes, x) <
            body = step (int64 i, bool go, double[N] u) => (on, v, kept) {{
              on = Identity(go)
              a = Mul(u, w)
              {nodes}
              v = Sin(d)
              kept = Identity(k)
            }}
          >
          loss = ReduceSum<keepdims = 0>(y)
        }}
        """
    )


@pytest.mark.parametrize(
    "nodes",
    [
        "ratio = CastLike(half, half) d, k = Dropout (a, ratio, go)",
        """d, k = If (go) <
             then_branch = t () => (d2, k2) { d2, k2 = Dropout (a, half, go) },
             else_branch = e () => (a, z) { z = Cast<to = 9>(a) }
           >""",
    ],
    ids=["dropout", "dropout in an if"],
)
def test_dropout_in_a_loop_drops_other_values_each_time_and_the_same_backwards(nodes: str) -> None:
    model = model_of(dropout_in_a_loop(nodes))
    n = 64
    feeds = {"x": uniform(n), "w": uniform(n, low=1, high=2)}
    backward = gradient_model(model, ["x", "w"], "loss")
    found = run_model(backward, feeds)
    masks = found["masks"]
    assert masks.shape == (3, n)
    assert len({mask.tobytes() for mask in masks}) == 3
    # The same by hand, with the masks that were drawn.
    u, du, dw = feeds["x"], np.ones(n), np.zeros(n)
    states = []
    for mask in masks:
        states.append(u)
        u = np.sin(u * feeds["w"] * mask / 0.5)
    for mask, state in zip(masks[::-1], states[::-1], strict=True):
        inner = du * np.cos(state * feeds["w"] * mask / 0.5) * mask / 0.5
        dw += inner * state
        du = inner * feeds["w"]
    np.testing.assert_allclose(found["y"], u, 1e-12)
    np.testing.assert_allclose(found["x_grad"], du, 1e-12)
    np.testing.assert_allclose(found["w_grad"], dw, 1e-12)


def test_a_function_that_holds_a_loop_is_inlined() -> None:
    check_model(
        """
        <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (int64 n, float[K] x) => (y)
        {
          a = own.power (n, x)
          y = own.power (n, a)
        }
        <domain: "own", opset_import: ["" : 17]>
        power (n, x) => (y)
        {
          yes = Constant<value = bool {1}>()
          y = Loop (n, yes, x) <
            body = step (int64 i, bool go, float[K] u) => (on, v) {
              on = Identity(go)
              v = Mul(u, x)
            }
          >
        }
        """,
        [{"n": np.int64(2), "x": f32(3)}],
    )
