"""Weights of rows and classes, clipping, precision, functions as metrics, the search for a rate, and the summary."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import Trainer
from ortrain.errors import InvalidArgumentError

RNG = np.random.default_rng(7)
X = RNG.normal(size=(40, 5)).astype(np.float32)
LABELS = X[:, :3].argmax(axis=1)
WEIGHTS = RNG.uniform(0.1, 3, 40).astype(np.float32)


def linear(outputs=3) -> onnx.ModelProto:
    weight = (np.random.default_rng(1).normal(size=(5, outputs)) / 2).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", outputs])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.zeros(outputs, np.float32), "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def weights(trainer):
    return {name: parameter.data for name, parameter in trainer.state.parameters}


def test_rows_are_weighted_as_the_formula_says():
    trainer = Trainer(linear(), loss="cross_entropy", optimizer="sgd", learning_rate=0.5, sample_weight=True)
    w, b = (value.astype(np.float64) for value in weights(trainer).values())
    scores = X @ w + b
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    shares = WEIGHTS.astype(np.float64) / WEIGHTS.sum()
    expected = -(shares * np.log(p[np.arange(40), LABELS])).sum()
    history = trainer.fit(X, LABELS, sample_weight=WEIGHTS, batch_size=40, verbose=False)
    assert history["loss"][0] == pytest.approx(expected, rel=1e-5)
    gradient = X.T @ (shares[:, None] * (p - np.eye(3)[LABELS]))
    np.testing.assert_allclose(weights(trainer)["w"], w - 0.5 * gradient, rtol=1e-4, atol=1e-6)
    # Without weights it is the usual loss, and prediction and evaluation need none.
    plain = Trainer(linear(), loss="cross_entropy").evaluate(X, LABELS)["loss"]
    fresh = Trainer(linear(), loss="cross_entropy", sample_weight=True)
    for data in ((X, LABELS), ([(X, LABELS)],), ({"x": X, "labels": LABELS},)):
        assert fresh.evaluate(*data)["loss"] == pytest.approx(plain, rel=1e-6)
    assert fresh.predict(X).shape == (40, 3)


def test_weights_of_classes_are_weights_of_their_rows():
    names = np.array(["a", "b", "c"])[LABELS]
    given = {"a": 2.0, "c": 0.5}
    by_row = np.array([given.get(name, 1.0) for name in names])
    counts = np.bincount(LABELS)
    cases = (
        ({"class_weight": given}, {"sample_weight": by_row}),
        ({"class_weight": "balanced"}, {"sample_weight": 40 / (3 * counts[LABELS])}),
        ({"class_weight": given, "sample_weight": WEIGHTS}, {"sample_weight": by_row * WEIGHTS}),
    )
    for classes, rows in cases:
        found, expected = (Trainer(linear(), loss="cross_entropy", sample_weight=True) for _ in range(2))
        histories = [
            trainer.fit(X, names, epochs=2, validation=0.25, verbose=False, **options)["val_loss"]
            for trainer, options in ((found, classes), (expected, rows))
        ]
        assert histories[0] == pytest.approx(histories[1], rel=1e-6)


def test_weights_that_cannot_be_used_are_named():
    trainer = Trainer(linear(), loss="cross_entropy", sample_weight=True)
    for options, message in (
        ({"sample_weight": [1.0]}, r"expected 40 weights, one for each row, found the shape \(1,\)"),
        ({"sample_weight": -WEIGHTS}, "expected weights of 0 or more"),
        ({"class_weight": {9: 1.0}}, "expected the classes of the data, 0, 1, 2, found 9"),
        ({"class_weight": "equal"}, "expected 'balanced' or a mapping"),
    ):
        with pytest.raises(ValueError, match=message):
            trainer.fit(X, LABELS, verbose=False, **options)
    with pytest.raises(ValueError, match="takes no weights; Trainer"):
        Trainer(linear(), loss="cross_entropy").fit(X, LABELS, sample_weight=WEIGHTS)
    with pytest.raises(ValueError, match="expected arrays in memory, found list"):
        trainer.fit([(X, LABELS)], class_weight="balanced")


def test_other_losses_are_weighted_too():
    target = RNG.normal(size=(40, 3)).astype(np.float32)
    for loss, function in (("mse", np.square), ("l1", np.abs)):
        trainer = Trainer(linear(), loss=loss, sample_weight=True)
        rows = function(trainer.predict(X) - target).mean(axis=1)
        history = trainer.fit(X, target, sample_weight=WEIGHTS, batch_size=40, verbose=False)
        assert history["loss"][0] == pytest.approx(np.average(rows, weights=WEIGHTS), rel=1e-5), loss


def test_gradients_are_clipped():
    options = {"loss": "mse", "optimizer": "sgd", "learning_rate": 1.0}
    target = np.full((40, 3), 100, np.float32)
    before = weights(Trainer(linear(), **options))
    moved = {}
    for clip in (None, 0.5):
        trainer = Trainer(linear(), clip=clip, **options)
        trainer.fit(X, target, batch_size=40, verbose=False)
        after = weights(trainer)
        moved[clip] = np.sqrt(sum(np.square(after[name] - before[name]).sum() for name in after))
    assert moved[0.5] == pytest.approx(0.5, rel=1e-3)
    assert moved[None] > 5
    with pytest.raises(ValueError, match="clip: expected a norm above 0"):
        Trainer(linear(), clip=0.0, **options)


def test_precision_is_that_of_the_session(tmp_path):
    trainer = Trainer(linear(), loss="cross_entropy", precision="bf16", artifact_directory=tmp_path)
    assert trainer.settings["config"] == {"ortrain.mixed_precision": "bf16"}
    trainer.fit(X, LABELS, epochs=2, verbose=False)
    with pytest.raises(ValueError, match="precision: expected fp32 or bf16, found 'fp16'"):
        Trainer(linear(), precision="fp16")
    for name, value in (("clip", 1.0), ("sample_weight", True)):
        with pytest.raises(TypeError, match=f"{name}: expected a model or a network with it, found a folder"):
            Trainer(tmp_path, **{name: value})


def test_functions_are_metrics():
    def certain(prediction, target):
        return (prediction.max(axis=1) > 1).mean()

    trainer = Trainer(linear(), loss="cross_entropy", metrics=[certain])
    found = trainer.evaluate(X, LABELS, batch_size=7)
    assert found["certain"] == pytest.approx((trainer.predict(X).max(axis=1) > 1).mean())
    wrong = Trainer(linear(), loss="cross_entropy", metrics=[lambda prediction, target: prediction])
    with pytest.raises(
        ValueError, match=r"expected one number for a batch, found an array of shape \(32, 3\)"
    ):
        wrong.evaluate(X, LABELS)


def test_a_learning_rate_is_found_and_nothing_changes(tmp_path):
    trainer = Trainer(linear(), loss="cross_entropy", optimizer="sgd")
    trainer.fit(X, LABELS, epochs=1, verbose=False)
    before, rate = weights(trainer), trainer.learning_rate
    found = trainer.find_learning_rate(X, LABELS, highest=1000, batch_size=8)
    assert {name: value.tobytes() for name, value in weights(trainer).items()} == {
        name: value.tobytes() for name, value in before.items()
    }
    assert (trainer.learning_rate, trainer.epoch) == (rate, 1)
    assert 1e-3 < found.suggestion < 100
    assert found.rates == sorted(found.rates)
    assert max(found.losses) > 2 * min(found.losses)  # it went on until the loss grew
    pytest.importorskip("matplotlib")
    found.plot(tmp_path / "rates.png")
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")
    better = Trainer(linear(), loss="cross_entropy", optimizer="sgd", learning_rate=found.suggestion)
    assert better.fit(X, LABELS, epochs=20, verbose=False)["loss"][-1] < found.losses[0] / 2
    with pytest.raises(ValueError, match="expected a finite loss from the start"):
        trainer.find_learning_rate(np.full_like(X, np.nan), LABELS)


def test_the_summary_counts_what_trains():
    trainer = Trainer(linear(), loss="cross_entropy", frozen_params=["b"])
    shown = str(trainer)
    assert shown == trainer.summary()
    assert shown.splitlines() == [
        "inputs: x float32 [batch, 5]; labels int64 [batch]",
        "parameter  shape  elements",
        "w          5 x 3        15  trained",
        "b          3             3  frozen",
        "18 elements, 15 trained, 3 frozen",
        "0.2 KiB are kept while training: parameters 0.1 KiB, gradients 0.1 KiB, state of the optimizer 0.1 KiB; intermediate "
        "values of a step need further memory",
    ]


def test_entries_of_the_session_are_checked():
    with pytest.warns(
        UserWarning, match=r"config: session\.disable_prepacking: ortrain accepts this entry of onnx"
    ):
        trainer = Trainer(
            linear(), "mse", config={"session.disable_prepacking": "1", "ortrain.lazy_rows": "1"}
        )
    assert trainer.settings["config"] == {"ortrain.lazy_rows": "1"}
    with pytest.raises(
        ValueError, match=r"config: unknown session config entry 'check_finite' \(did you mean 'ortrain"
    ):
        Trainer(linear(), "mse", config={"check_finite": "1"})
    with pytest.raises(
        InvalidArgumentError, match=r"ortrain\.lazy_rows: expected one of '0', '1', found 'yes'"
    ):
        Trainer(linear(), "mse", config={"ortrain.lazy_rows": "yes"})
