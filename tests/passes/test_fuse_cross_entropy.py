"""The scores of a vocabulary are computed with their cross entropy, a block at a time: against NumPy in double precision."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from ortrain import artifacts, onnxblock
from ortrain.artifacts import OptimType
from ortrain.artifacts.graph.stored_weights import stored_weights
from training import Training

Array = np.ndarray[Any, Any]
WIDTH, WORDS, IGNORED = 64, 5000, -100


def model_with(hidden: Array, words: Array, turned: bool) -> onnx.ModelProto:
    """x [rows, positions, WIDTH] -> hidden values -> scores of all words."""
    nodes = [helper.make_node("MatMul", ["x", "body.weight"], ["hidden"], "body")]
    if turned:
        nodes.append(helper.make_node("Transpose", ["words.weight"], ["turned"], perm=[1, 0]))
    nodes.append(
        helper.make_node("MatMul", ["hidden", "turned" if turned else "words.weight"], ["scores"], "words")
    )
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", 1, ["n", "t", WIDTH])],
        [helper.make_tensor_value_info("scores", 1, ["n", "t", WORDS])],
        [
            numpy_helper.from_array(hidden, "body.weight"),
            numpy_helper.from_array(words if turned else np.ascontiguousarray(words.T), "words.weight"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def decoded(model: onnx.ModelProto) -> Array:
    """The weights of the only MatMulNBits of a model."""
    (node,) = (node for node in model.graph.node if node.op_type == "MatMulNBits")
    return stored_weights(model, node).values


def make_artifacts(model: onnx.ModelProto, folder: pathlib.Path) -> None:
    artifacts.generate_artifacts(
        model,
        requires_grad=["body.weight"],
        loss=onnxblock.loss.CrossEntropyLoss(axis=-1, ignore_index=IGNORED),
        optimizer=OptimType.SGD,
        artifact_directory=folder,
    )


@pytest.mark.parametrize("form", ["matrix", "turned", "codes"])
def test_loss_and_gradient_are_those_of_the_formula(form: str, tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    hidden = rng.normal(0, 0.1, (WIDTH, WIDTH)).astype(np.float32)
    words = rng.normal(0, 0.5, (WORDS, WIDTH)).astype(np.float32)
    model = model_with(hidden, words, form == "turned")
    if form == "codes":
        done = artifacts.quantize_weights(model, skip=["body"])
        model = done.model
        words = decoded(model)
    make_artifacts(model, tmp_path)
    # More positions than are computed at a time.
    x = rng.normal(size=(3, 700, WIDTH)).astype(np.float32)
    labels = rng.integers(0, WORDS, (3, 700))
    # Positions that count lie apart, and some parts have few of them.
    labels[0, :50] = labels[1, ::3] = labels[2, 400:] = IGNORED
    exact = x.astype(np.float64).reshape(-1, WIDTH)
    scores = exact @ hidden.astype(np.float64) @ words.T.astype(np.float64)
    scores -= scores.max(1, keepdims=True)
    chances = np.exp(scores)
    chances /= chances.sum(1, keepdims=True)
    counts = labels.ravel() != IGNORED
    places = np.flatnonzero(counts), labels.ravel()[counts]
    loss = -np.log(chances[places]).mean()
    chances[places] -= 1
    slope = exact.T @ (chances * counts[:, None] / counts.sum() @ words)
    for disabled in ("0", "1"):
        graphs = tmp_path / f"graphs{disabled}"
        config = {"ortrain.disable_pass.fuse_cross_entropy": disabled, "ortrain.dump_graph": str(graphs)}
        training = Training(tmp_path, config)
        assert training.loss(x, labels) == pytest.approx(loss, rel=1e-5)
        gradient = training.gradients()["body.weight"]
        np.testing.assert_allclose(gradient, slope, rtol=1e-3, atol=1e-5 * np.abs(slope).max())
        assert training.evaluate(x, labels) == pytest.approx(loss, rel=1e-5)
        fused = [file for file in graphs.rglob("*") if b"ProjectedCrossEntropy" in file.read_bytes()]
        assert bool(fused) == (disabled == "0")
        # Without a label that counts, the mean loss is 0 / 0, and nothing is added to the gradient.
        assert np.isnan(training.loss(x, np.full_like(labels, IGNORED)))
        np.testing.assert_array_equal(training.gradients()["body.weight"], gradient)
    labels[1, 3] = WORDS
    with pytest.raises(ValueError, match=r"label 5000 at position 703 is not one of the 5000 classes"):
        Training(tmp_path).loss(x, labels)


def test_in_bfloat16_loss_and_gradient_are_those_of_float32_within_two_percent(
    tmp_path: pathlib.Path,
) -> None:
    rng = np.random.default_rng(0)
    hidden = rng.normal(0, 0.1, (WIDTH, WIDTH)).astype(np.float32)
    words = rng.normal(0, 0.5, (WORDS, WIDTH)).astype(np.float32)
    make_artifacts(
        artifacts.quantize_weights(model_with(hidden, words, False), skip=["body"]).model, tmp_path
    )
    batch = rng.normal(size=(2, 600, WIDTH)).astype(np.float32), rng.integers(0, WORDS, (2, 600))
    exact = Training(tmp_path, {})
    loss, gradient = exact.loss(*batch), exact.gradients()["body.weight"]
    config = {"ortrain.mixed_precision": "bf16", "ortrain.bf16_products": "bf16"}
    mixed = Training(tmp_path, config)
    found = mixed.loss(*batch)
    assert found == pytest.approx(loss, rel=1e-3)
    assert found != loss
    apart = np.linalg.norm(mixed.gradients()["body.weight"] - gradient)
    assert 0 < apart <= 0.02 * np.linalg.norm(gradient)


def in_bfloat16(values: Array) -> Array:
    """Return float32 values rounded to bfloat16, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def as_given(values: Array) -> Array:
    return values.astype(np.float32)


PRECISIONS: dict[str, tuple[dict[str, str], Callable[[Array], Array]]] = {
    "float32": ({}, as_given),
    "bfloat16": ({"ortrain.mixed_precision": "bf16", "ortrain.bf16_products": "bf16"}, in_bfloat16),
}
"""The configuration of the session, and how operands are rounded."""


@pytest.mark.parametrize("factor", [0.25, 8, 128])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_scores_of_any_size_are_those_of_rounded_operands(
    precision: str, factor: float, tmp_path: pathlib.Path
) -> None:
    config, rounded = PRECISIONS[precision]
    rng = np.random.default_rng(0)
    hidden, words = np.eye(WIDTH, dtype=np.float32), rng.normal(0, 0.5, (WORDS, WIDTH)).astype(np.float32)
    done = artifacts.quantize_weights(model_with(hidden, words, False), skip=["body"])
    make_artifacts(done.model, tmp_path)
    x = rounded(factor * rng.normal(size=(1, 300, WIDTH)))
    scores = x[0].astype(np.float64) @ rounded(decoded(done.model)).T.astype(np.float64)
    # With factor 128, scores are from about -2,500 to 2,500. Labels are often the best word, so that losses vary.
    labels = np.where(rng.random(300) < 0.5, scores.argmax(1), rng.integers(0, WORDS, 300))[None]
    labels[0, :7] = labels[0, 100::2] = IGNORED
    counts = labels[0] != IGNORED
    chances = np.exp(scores - scores.max(1, keepdims=True))
    sums = chances.sum(1)
    losses = np.log(sums) + scores.max(1) - scores[np.arange(300), labels[0]]
    chances /= sums[:, None]
    chances[np.arange(300), labels[0]] -= 1
    slope = x[0].astype(np.float64).T @ (
        chances * counts[:, None] / counts.sum() @ rounded(decoded(done.model))
    )
    training = Training(tmp_path, config)
    assert training.loss(x, labels) == pytest.approx(losses[counts].mean(), rel=1e-5)
    apart = np.linalg.norm(training.gradients()["body.weight"] - slope)
    # In float32, scores of 2,500 have an error of about 1e-4.
    bound = 2**-8 if precision == "bfloat16" else 1e-6 * max(1, factor)
    assert apart <= bound * np.linalg.norm(slope)
    assert training.evaluate(x, labels) == pytest.approx(losses[counts].mean(), rel=1e-5)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("slope", [1, -1])
def test_scores_that_grow_or_fall_along_the_vocabulary(
    slope: int, precision: str, tmp_path: pathlib.Path
) -> None:
    config, rounded = PRECISIONS[precision]
    rng = np.random.default_rng(4)
    words = rng.normal(0, 0.5, (WORDS, WIDTH)).astype(np.float32)
    words[:, 0] = slope * np.linspace(-200, 200, WORDS)
    model = model_with(np.eye(WIDTH, dtype=np.float32), words, False)
    done = artifacts.quantize_weights(model, skip=["body"])
    make_artifacts(done.model, tmp_path)
    stored = rounded(decoded(done.model)).astype(np.float64)
    # Of more positions than are computed at a time; the fewer count, the more words are computed at a time.
    x = rounded(rng.normal(size=(1, 800, WIDTH)))
    # In the first positions, the scores differ by less than 1 along the vocabulary; in the last by thousands.
    x[0, :, 0] = rounded(np.geomspace(1e-3, 10, 800))
    labels = rng.integers(0, WORDS, (1, 800))
    training = Training(tmp_path, config)
    expected_gradient = np.zeros((WIDTH, WIDTH))
    for ignored in (0, 400):
        labels[0, :ignored] = IGNORED
        counts = labels[0] != IGNORED
        exact = x[0, counts].astype(np.float64)
        scores = exact @ stored.T
        places = np.arange(len(exact)), labels[0, counts]
        chances = np.exp(scores - scores.max(1, keepdims=True))
        sums = chances.sum(1)
        losses = np.log(sums) + scores.max(1) - scores[places]
        chances /= sums[:, None]
        chances[places] -= 1
        assert training.loss(x, labels) == pytest.approx(losses.mean(), rel=1e-5)
        expected_gradient += exact.T @ (chances @ stored) / len(exact)
    apart = np.linalg.norm(training.gradients()["body.weight"] - expected_gradient)
    assert apart <= (2**-8 if precision == "bfloat16" else 1e-5) * np.linalg.norm(expected_gradient)


def scaled_words(largest: float, lowest: float) -> tuple[onnx.ModelProto, Array, Array]:
    """Return a model that passes one positive number on to all words, with the first two words far apart; inputs, scores."""
    rng = np.random.default_rng(3)
    hidden, words = np.zeros((WIDTH, WIDTH), np.float32), np.zeros((WORDS, WIDTH), np.float32)
    hidden[0, 0] = 1
    words[:, 0] = rng.normal(size=WORDS)
    words[0, 0], words[1, 0] = largest, lowest
    x = np.zeros((1, 40, WIDTH), np.float32)
    x[:, :, 0] = rng.uniform(0.5, 1, (1, 40))
    return model_with(hidden, words, True), x, x[0, :, :1].astype(np.float64) * words[:, 0].astype(np.float64)


@pytest.mark.parametrize(
    ("largest", "lowest"), [(3, -1e30), (90, -np.inf), (1e4, -3e4), (1e12, -1e12), (-1, -1e38)]
)
def test_words_that_a_model_masks_or_prefers_by_far(
    largest: float, lowest: float, tmp_path: pathlib.Path
) -> None:
    model, x, scores = scaled_words(largest, lowest)
    make_artifacts(model, tmp_path)
    training = Training(tmp_path)
    for label in (0, 2):
        top = scores.max(1)
        losses = np.log(np.exp(scores - top[:, None]).sum(1)) + top - scores[:, label]
        assert training.loss(x, np.full((1, 40), label)) == pytest.approx(losses.mean(), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("score", [np.nan, np.inf])
def test_a_score_that_is_not_finite_makes_the_loss_nan(score: float, tmp_path: pathlib.Path) -> None:
    model, x, _ = scaled_words(score, 0)
    make_artifacts(model, tmp_path)
    assert np.isnan(Training(tmp_path).loss(x, np.full((1, 40), 2)))


def test_in_bfloat16_a_score_may_have_any_size(tmp_path: pathlib.Path) -> None:
    model, x, _ = scaled_words(1e12, 0)
    make_artifacts(artifacts.quantize_weights(model, skip=["body"]).model, tmp_path)
    training = Training(tmp_path, PRECISIONS["bfloat16"][0])
    assert training.loss(x, np.zeros((1, 40), np.int64)) == 0
    assert training.loss(x, np.full((1, 40), 2)) == pytest.approx(1e12 * x[0, :, 0].mean(), rel=0.02)
