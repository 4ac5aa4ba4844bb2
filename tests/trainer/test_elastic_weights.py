"""Elastic weight consolidation: the Fisher information of data, and the penalty, against NumPy in double precision."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import Trainer
from ortrain.onnxblock import loss, optim
from ortrain.trainer import fisher


def linear():
    """From ``x``, float32 ``[batch, 5]``, to ``scores``, float32 ``[batch, 3]``."""
    rng = np.random.default_rng(2)
    weights = {"w": rng.normal(size=(5, 3)), "b": rng.normal(size=3)}
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["scores"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 5])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def rows(seed=1, count=12):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 5)).astype(np.float32), rng.integers(0, 3, count)


def gradients(w, b, x, y):
    """The gradients of the cross entropy of each row: ``[rows, 5, 3]`` and ``[rows, 3]``."""
    scores = x @ w + b
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    by_scores = shares / shares.sum(axis=1, keepdims=True) - np.eye(3)[y]
    return x[:, :, None] * by_scores[:, None, :], by_scores


def values(model):
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    return found["w"].astype(np.float64), found["b"].astype(np.float64)


def test_the_information_is_the_mean_of_squared_gradients_of_rows():
    trainer = Trainer(linear(), "cross_entropy")
    x, y = rows()
    before = [parameter.data.copy() for _, parameter in trainer.state.parameters]
    found = fisher(trainer, (x, y))
    for expected, name in zip(gradients(*values(linear()), x, y), ("w", "b"), strict=True):
        np.testing.assert_allclose(found[name], np.square(expected).mean(axis=0), rtol=2e-5, atol=1e-9)
        assert found[name].dtype == np.float32
    for value, (_, parameter) in zip(before, trainer.state.parameters, strict=True):
        np.testing.assert_array_equal(value, parameter.data)
    some = fisher(trainer, x, y, rows=5)
    assert not np.array_equal(some["w"], found["w"])


def test_steps_are_those_of_the_penalized_loss():
    model, (x, y), strength, rate = linear(), rows(), 30.0, 0.05
    importance = fisher(Trainer(model, "cross_entropy"), rows(7))
    block = loss.ElasticWeights(loss.CrossEntropyLoss(), importance, strength)
    trainer = Trainer(model, block, optim.SGD(), learning_rate=rate, feature_cache=False)
    w, b = start = values(model)
    f = [importance[name].astype(np.float64) for name in ("w", "b")]
    losses = []
    for _ in range(4):
        of_w, of_b = gradients(w, b, x, y)
        scores = x @ w + b
        cross = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(y)), y]
        penalty = sum((k * np.square(v - s)).sum() for k, v, s in zip(f, (w, b), start, strict=True))
        losses.append(cross.mean() + strength / 2 * penalty)
        w = w - rate * (of_w.mean(axis=0) + strength * f[0] * (w - start[0]))
        b = b - rate * (of_b.mean(axis=0) + strength * f[1] * (b - start[1]))
    history = trainer.fit((x, y), 4, batch_size=len(x), shuffle=False, verbose=False)
    np.testing.assert_allclose(history["loss"], losses, rtol=1e-5)
    for expected, name in ((w, "w"), (b, "b")):
        np.testing.assert_allclose(dict(trainer.state.parameters)[name].data, expected, rtol=1e-5, atol=1e-6)


def test_importance_that_does_not_fit_is_an_error():
    cross = loss.CrossEntropyLoss()
    with pytest.raises(ValueError, match="strength: expected 0 or more, found -1"):
        loss.ElasticWeights(cross, {"w": np.ones((5, 3))}, -1)
    with pytest.raises(ValueError, match="expected finite numbers of 0 or more for w"):
        loss.ElasticWeights(cross, {"w": -np.ones((5, 3))}, 1)
    with pytest.raises(ValueError, match="the model has no weight 'v'; it has w, b"):
        Trainer(linear(), loss.ElasticWeights(cross, {"v": np.ones(3)}, 1))
    with pytest.raises(ValueError, match=r"expected the shape \[5, 3\] of the weight w, found \[3, 5\]"):
        Trainer(linear(), loss.ElasticWeights(cross, {"w": np.ones((3, 5))}, 1))


def test_a_trained_export_is_where_the_penalty_begins(tmp_path):
    first = Trainer(linear(), "cross_entropy", learning_rate=0.1)
    first.fit(rows(), 5, batch_size=4, verbose=False)
    first.export(tmp_path / "first.onnx")
    block = loss.ElasticWeights(loss.CrossEntropyLoss(), fisher(first, rows()), 10.0)
    plain = Trainer(onnx.load(tmp_path / "first.onnx"), "cross_entropy")
    second = Trainer(tmp_path / "first.onnx", block)
    assert second.evaluate(rows())["loss"] == pytest.approx(plain.evaluate(rows())["loss"], rel=1e-6)
