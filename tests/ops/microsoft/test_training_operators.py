"""The operators of training graphs, against onnxruntime-training 1.19.2 (data/training_ops), or formulas without it."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from helpers import (
    MICROSOFT,
    Array,
    Op,
    apart,
    check_forward,
    check_gradient,
    check_rejected,
    run,
    run_model,
    uniform,
)
from onnx import helper, numpy_helper

_FOLDER = pathlib.Path(__file__).parents[2] / "data" / "training_ops"
_CASES: list[dict[str, Any]] = json.loads((_FOLDER / "cases.json").read_text())


def _arrays() -> list[dict[str, Array]]:
    """The inputs and outputs of each case by name."""
    with np.load(_FOLDER / "cases.npz") as file:
        data = file["data"].tobytes()
    found, at = [], 0
    for case in _CASES:
        arrays = {}
        for name, (dtype, *shape) in case["arrays"].items():
            count = int(np.prod(shape, dtype=np.int64))
            arrays[name] = np.frombuffer(data, dtype, count, at).reshape(shape)
            at += arrays[name].nbytes
        found.append(arrays)
    assert at == len(data)
    return found


_ARRAYS = _arrays()


@pytest.mark.parametrize("number", range(len(_CASES)), ids=lambda n: f"{n}-{_CASES[n]['op']}")
def test_recorded(number: int) -> None:
    case, arrays = _CASES[number], _ARRAYS[number]
    node = helper.make_node(
        case["op"], case["inputs"], case["outputs"], domain=case["domain"], **case["attributes"]
    )
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in arrays.items()
    ]
    graph = helper.make_graph(
        [node],
        "case",
        [i for i in infos if i.name.startswith("x") and i.name not in case["constants"]],
        [i for i in infos if i.name.startswith("y")],
        [numpy_helper.from_array(arrays[name], name) for name in case["constants"]],
    )
    imports = [helper.make_opsetid("", case["opset"]), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    feeds = {i.name: arrays[i.name].copy() for i in graph.input}
    found = run_model(model.SerializeToString(), feeds)
    for name, expected in arrays.items():
        if not name.startswith("y"):
            continue
        assert found[name].dtype == expected.dtype, name
        assert found[name].shape == expected.shape, name
        largest = float(np.abs(expected.astype(np.float64)).max(initial=0))
        np.testing.assert_allclose(found[name], expected, 1e-5, 2e-6 * largest, err_msg=name)


def _log_softmax(x: Array) -> Array:
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


# Losses.


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5), (1, 1), (5,)], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("opset", [12, 17])
def test_softmax_cross_entropy(shape: tuple[int, ...], reduction: str, opset: int) -> None:
    logits, label = uniform(*shape, low=-3, high=3), uniform(*shape, low=0, high=1, seed=1)
    op = Op("SoftmaxCrossEntropy", {"reduction": reduction}, MICROSOFT, opset, outputs=2)
    log_p = _log_softmax(logits)
    losses = -(label * log_p).sum(-1)
    check_forward(
        op, [logits, label], [np.asarray(losses.mean() if reduction == "mean" else losses.sum()), log_p]
    )
    check_gradient(op, [logits, label], outputs=[0])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_sparse_softmax_cross_entropy(reduction: str, weighted: bool, dtype: Any) -> None:
    logits, label = uniform(2, 3, 4), np.array([[0, 3, 1], [2, 2, 0]], dtype)
    inputs = [logits, label] + ([uniform(2, 3, low=0.1)] if weighted else [])
    op = Op("SparseSoftmaxCrossEntropy", {"reduction": reduction})
    check_gradient(op, inputs, wrt=[0])


def test_sparse_softmax_cross_entropy_names_a_label_out_of_range() -> None:
    check_rejected_at_run(Op("SparseSoftmaxCrossEntropy"), [uniform(2, 3), np.array([0, 3], np.int64)], "3")


def check_rejected_at_run(op: Op, inputs: list[Array], match: str) -> None:
    with pytest.raises(RuntimeError, match=match) as caught:
        run(op, inputs)
    assert "under_test" in str(caught.value)


@pytest.mark.parametrize("form", ["", "2"])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_likelihood_with_ignore_index_as_input(form: str, reduction: str) -> None:
    log_p, labels = _log_softmax(uniform(4, 3)), np.array([0, 2, 1, 2], np.int64)
    op = Op(f"NegativeLogLikelihoodLossInternal{form}", {"reduction": reduction}, MICROSOFT)
    used = labels != 2
    losses = -log_p[np.arange(4), labels] * used
    expected = {
        "none": losses,
        "sum": np.asarray(losses.sum()),
        "mean": np.asarray(losses.sum() / used.sum()),
    }
    inputs = [log_p, labels, None, np.array(2, np.int64)]
    check_forward(op, inputs, [expected[reduction]], rtol=1e-12)
    check_gradient(op, inputs, wrt=[0])


# Sums, tests, and passing values through.


@pytest.mark.parametrize("count", [2, 3])
def test_scaled_sum(count: int) -> None:
    scales = [0.5, -2.0, 3.0][:count]
    op = Op("ScaledSum", {f"scale_{i}": s for i, s in enumerate(scales)}, MICROSOFT)
    inputs = [uniform(2, 3, seed=i) for i in range(count)]
    check_forward(op, inputs, [np.asarray(sum(s * x for s, x in zip(scales, inputs, strict=True)))])
    check_gradient(op, inputs)


@pytest.mark.parametrize("count", [2, 3])
def test_batch_scale(count: int) -> None:
    scales = [0.5, -2.0, 3.0][:count]
    op = Op("BatchScale", {f"scale_{i}": s for i, s in enumerate(scales)}, MICROSOFT, outputs=count)
    x = uniform(2, 3)
    check_forward(op, [x], [s * x for s in scales])
    check_gradient(op, [x])


def test_a_missing_factor_is_named() -> None:
    check_rejected(
        Op("BatchScale", {"scale_0": 1.0}, MICROSOFT, outputs=2), [uniform(2)], "scale_1 is missing"
    )


def test_mixed_precision_scale() -> None:
    s, x, y = np.array(4.0, np.float32), uniform(2, 3, dtype=np.float32), uniform(4, dtype=np.float32)
    op = Op("MixedPrecisionScale", {"to": 11}, MICROSOFT, outputs=2)
    check_forward(op, [s, x, y], [4.0 * x.astype(np.float64), 4.0 * y.astype(np.float64)])
    fused = Op("MixedPrecisionScale", {"to": 1, "fuse_outputs": 1}, MICROSOFT)
    check_forward(fused, [s, x, y], [4 * np.concatenate([x.ravel(), y])])


def test_reduce_all_l2() -> None:
    x, y = uniform(2, 3), uniform(4)
    op = Op("ReduceAllL2", {}, MICROSOFT)
    check_forward(op, [x, y], [np.asarray(np.sqrt((x**2).sum() + (y**2).sum()))])
    check_forward(op, [y], [np.asarray(np.sqrt((y**2).sum()))])
    check_gradient(op, [x, y])


@pytest.mark.parametrize("values", [[True, True], [True, False], [], [False]])
def test_all(values: list[bool]) -> None:
    check_forward(Op("All", {}, MICROSOFT), [np.array(values, bool)], [np.asarray(all(values))])


def test_is_finite() -> None:
    x = np.array([1, np.inf, -np.inf, np.nan, 0, 3e38], np.float32)
    check_forward(Op("IsFinite", {}, MICROSOFT), [x], [np.isfinite(x)])
    for bad in [np.inf, np.nan]:
        y = np.array([1, bad], np.float32)
        for settings, found in [
            ({}, False),
            ({"isinf_only": 1}, np.isnan(bad)),
            ({"isnan_only": 1}, np.isinf(bad)),
        ]:
            op = Op("IsAllFinite", settings, MICROSOFT)
            check_forward(op, [x[:1], y], [np.asarray(bool(found))])
            check_forward(op, [x[:1]], [np.asarray(True)])
    check_rejected(
        Op("IsAllFinite", {"isinf_only": 1, "isnan_only": 1}, MICROSOFT), [x], "are mutually exclusive"
    )


def test_pass_through_and_megatron() -> None:
    x, y = uniform(2, 3), uniform(4)
    check_forward(Op("PassThrough", {}, MICROSOFT, outputs=2), [x, y], [x, y])
    check_gradient(Op("PassThrough", {}, MICROSOFT, outputs=2), [x, y])
    for op in ["MegatronF", "MegatronG"]:
        check_forward(Op(op, {}, MICROSOFT), [x], [x])
        check_gradient(Op(op, {}, MICROSOFT), [x])


@pytest.mark.parametrize("constants", [[], [1, 2, 3]], ids=["given with the run", "constant"])
def test_view(constants: list[int]) -> None:
    x, shapes = uniform(11), [np.array([2, 3], np.int64), np.array([4], np.int64), np.array([1, 1], np.int64)]
    op = Op("View", {}, MICROSOFT, outputs=3)
    check_forward(op, [x, *shapes], [x[:6].reshape(2, 3), x[6:10], x[10:].reshape(1, 1)], constants=constants)
    check_gradient(op, [x, *shapes], wrt=[0], constants=constants)


def test_padding_goes_and_comes_back() -> None:
    batch, rows = uniform(2, 4, 3), np.array([0, 2, 3, 5, 7], np.int64)
    flat = batch.reshape(8, 3)[rows]
    op = Op("FlattenAndUnpad", {}, MICROSOFT, outputs=2)
    check_forward(op, [batch, rows], [flat, np.array([2, 4], np.int64)])
    check_gradient(op, [batch, rows], wrt=[0], outputs=[0])
    padded = np.zeros((8, 3))
    padded[rows] = flat
    back = Op("PadAndUnflatten", {}, MICROSOFT)
    inputs = [flat, rows, np.array([2, 4], np.int64)]
    for constants in ([], [2]):
        check_forward(back, inputs, [padded.reshape(2, 4, 3)], constants=constants)
        check_gradient(back, inputs, wrt=[0], constants=constants)


@pytest.mark.parametrize("axis", [0, -1])
def test_few_rows_are_gathered(axis: int) -> None:
    x, rows = uniform(5, 4), np.array([3, 0, 3], np.int64)
    op = Op("ShrunkenGather", {"axis": axis}, MICROSOFT)
    check_forward(op, [x, rows], [np.take(x, rows, axis)])
    check_gradient(op, [x, rows], wrt=[0])


# Optimizers, beyond what 1.19.2 computes on a CPU: scaled and clipped gradients, and the signal.

_ADAM = {"alpha": 0.8, "beta": 0.95, "epsilon": 1e-3, "max_norm_clip": 0.5}


def _adam(g: Array) -> list[Array]:
    rate, step = np.array(0.1), np.array(3, np.int64)
    w, m, v = uniform(3, 2, seed=1), uniform(3, 2, seed=2), np.abs(uniform(3, 2, seed=3))
    return [rate, step, w, g, m, v]


@pytest.mark.parametrize(("scale", "norm"), [(2.0, None), (None, 4.0), (None, 0.4), (2.0, 4.0), (8.0, 2.0)])
def test_adam_unscales_and_clips(scale: float | None, norm: float | None) -> None:
    g = uniform(3, 2, seed=5)
    divisor = scale or 1.0
    if norm is not None and norm > divisor * _ADAM["max_norm_clip"]:
        divisor = norm / _ADAM["max_norm_clip"]
    op = Op("AdamOptimizer", _ADAM, MICROSOFT, outputs=5)
    extra = [None, None if scale is None else np.array(scale), None if norm is None else np.array(norm)]
    found = run(op, [*_adam(g), *extra])
    expected = run(op, _adam(g / divisor))
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e, 1e-12, 1e-14)


@pytest.mark.parametrize("signal", [True, False])
def test_adam_waits_for_its_signal(signal: bool) -> None:
    inputs = _adam(uniform(3, 2, seed=5))
    op = Op("AdamOptimizer", _ADAM, MICROSOFT, outputs=5)
    found = run(op, [*inputs, None, None, None, np.array([signal])])
    unchanged = [inputs[1], inputs[4], inputs[5], inputs[2], inputs[3]]
    for f, e in zip(found, run(op, inputs) if signal else unchanged, strict=True):
        np.testing.assert_array_equal(f, e)


# Dropout with packed masks, and what is fused with it.


def _bits(mask: Array, count: int) -> Array:
    return np.unpackbits(mask.view(np.uint8), bitorder="little")[:count].astype(bool)


@pytest.mark.parametrize("count", [1, 31, 32, 33, 1000, 200_003])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bitmask_dropout(count: int, dtype: Any) -> None:
    x = uniform(count, low=0.5, high=1, dtype=dtype)
    ratio, training = np.array(0.3, np.float32), np.array(True)
    op = Op("BitmaskDropout", {"seed": 5}, MICROSOFT, outputs=2)
    y, mask = run(op, [x, ratio, training])
    assert mask.dtype == np.uint32
    assert mask.shape == ((count + 31) // 32,)
    kept = _bits(mask, count)
    np.testing.assert_allclose(y, np.where(kept, x / dtype(0.7), 0), 1e-6)
    assert not _bits(mask, 32 * mask.size)[count:].any()
    if count > 1000:
        assert abs(kept.mean() - 0.7) < 0.01
    dy = uniform(count, dtype=dtype, seed=2)
    back = Op("BitmaskDropoutGrad", {}, MICROSOFT)
    check_forward(back, [dy, mask, ratio, training], [np.where(kept, dy / dtype(0.7), 0)], rtol=1e-6)
    plain = run(op, [x])
    np.testing.assert_array_equal(plain[0], x)
    assert _bits(plain[1], count).all()
    check_forward(back, [dy, mask], [np.where(kept, dy, 0)])


def test_bitmask_dropout_passes_gradients_to_what_it_kept() -> None:
    op = Op("BitmaskDropout", {"seed": 5}, MICROSOFT, outputs=2)
    check_gradient(op, [uniform(40), np.array(0.3), np.array(True)], wrt=[0], outputs=[0])


def test_bitmask_dropout_refuses_a_mask_of_another_size() -> None:
    inputs = [uniform(40), np.zeros(3, np.uint32)]
    check_rejected(Op("BitmaskDropoutGrad", {}, MICROSOFT), inputs, r"uint32\[2\]")


@pytest.mark.parametrize("kind", ["BiasDropout", "BitmaskBiasDropout"])
@pytest.mark.parametrize("residual", [False, True])
def test_bias_dropout(kind: str, residual: bool) -> None:
    x, bias = uniform(4, 10), uniform(10, seed=1)
    rest = uniform(4, 10, seed=2) if residual else None
    ratio, training = np.array(0.5), np.array(True)
    op = Op(kind, {"seed": 3}, MICROSOFT, outputs=2)
    y, mask = run(op, [x, bias, rest, ratio, training])
    kept = _bits(mask, 40).reshape(4, 10) if kind.startswith("Bit") else mask
    assert kept.any()
    assert not kept.all()
    expected = np.where(kept, (x + bias) * 2, 0) + (0 if rest is None else rest)
    np.testing.assert_allclose(y, expected, 1e-12)
    check_gradient(op, [x, bias, rest, ratio, training], wrt=[0, 1, 2] if residual else [0, 1], outputs=[0])


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_bias_softmax_dropout(axis: int) -> None:
    x, bias, ratio = uniform(2, 3, 4), uniform(1, 3, 4, seed=1), np.array(0.5)
    op = Op("BiasSoftmaxDropout", {"axis": axis, "is_inner_broadcast": 1, "seed": 9}, MICROSOFT, outputs=3)
    y, mask, s = run(op, [x, bias, ratio])
    rows = (x + bias).reshape((2, -1) if axis == 1 else (6, -1))
    expected = np.exp(_log_softmax(rows)).reshape(x.shape)
    np.testing.assert_allclose(s, expected, 1e-12)
    np.testing.assert_allclose(y, np.where(mask, 2 * expected, 0), 1e-12)
    check_gradient(op, [x, bias, ratio], wrt=[0, 1], outputs=[0])
    dy = uniform(2, 3, 4, seed=4)
    d = np.where(mask, 2 * dy, 0)
    flat = (d * s).reshape(rows.shape).sum(-1, keepdims=True)
    wanted = s * d - (s.reshape(rows.shape) * flat).reshape(x.shape)
    check_forward(
        Op("SoftmaxDropoutGrad", {"axis": axis}, MICROSOFT), [dy, mask, s, ratio], [wanted], rtol=1e-12
    )


def test_layer_normalization_gradient_from_its_output() -> None:
    x, scale, bias = apart(3, 5), uniform(5, low=0.5, high=2, seed=1), uniform(5, seed=2)
    dy = uniform(3, 5, seed=3)
    mean, inv_std = x.mean(-1, keepdims=True), 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    y = (x - mean) * inv_std * scale + bias
    expected = run(Op("LayerNormalizationGrad", {}, MICROSOFT, outputs=3), [dy, x, scale, mean, inv_std])
    op = Op("InvertibleLayerNormalizationGrad", {}, MICROSOFT, outputs=3)
    check_forward(op, [dy, y, scale, bias, inv_std], expected, rtol=1e-9)
