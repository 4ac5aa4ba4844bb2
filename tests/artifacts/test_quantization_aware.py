"""Quantization-aware training: gradients, ranges in the checkpoint, and the exported model in onnxruntime."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import onnxruntime
import ortrain
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from ortrain import Trainer, artifacts
from ortrain.api import CheckpointState
from ortrain.artifacts import Int8
from training import Training

Array = NDArray[Any]
random = np.random.default_rng(3)


def network(opset: int = 17) -> onnx.ModelProto:
    """A convolution, a product and a Gemm, from ``image`` [n, 1, 8, 8] to ``scores`` [n, 10]."""
    weights = {
        "conv.weight": random.normal(size=(8, 1, 3, 3)) / 3,
        "conv.bias": np.zeros(8),
        "hidden.weight": random.normal(size=(288, 32)) / 17,
        "head.weight": random.normal(size=(10, 32)) / 6,
        "head.bias": np.zeros(10),
    }
    float32 = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["image", "conv.weight", "conv.bias"], ["c"]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("Flatten", ["r"], ["f"]),
            helper.make_node("MatMul", ["f", "hidden.weight"], ["h"]),
            helper.make_node("Relu", ["h"], ["s"]),
            helper.make_node("Gemm", ["s", "head.weight", "head.bias"], ["scores"], transB=1),
        ],
        "digits",
        [helper.make_tensor_value_info("image", float32, ["n", 1, 8, 8])],
        [helper.make_tensor_value_info("scores", float32, ["n", 10])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.fixture(scope="module")
def digits() -> tuple[Array, Array, Array, Array]:
    """Return images and classes for training, and for a test."""
    with np.load(pathlib.Path(ortrain.__file__).parent / "demo_data/digits.npz") as file:
        arrays = [file[name] for name in file.files]
    images = next(a for a in arrays if a.ndim > 1).reshape(-1, 1, 8, 8).astype(np.float32)
    images /= images.max()
    classes = next(a for a in arrays if a.ndim == 1).astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    images, classes = images[order], classes[order]
    return images[:1300], classes[:1300], images[1300:], classes[1300:]


def quantized(x: Array, scale: Array | float, zero: int, low: int, high: int) -> Array:
    """Return the values that integers of 8 bits stand for."""
    return (np.clip(np.rint(x / scale) + zero, low, high) - zero) * scale


def test_the_loss_and_gradient_are_those_of_the_rounded_layer(tmp_path: pathlib.Path) -> None:
    weight = random.normal(size=(6, 4)).astype(np.float32)
    x = random.normal(size=(5, 6)).astype(np.float32)
    target = random.normal(size=(5, 4)).astype(np.float32)
    float32 = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["y"])],
        "layer",
        [helper.make_tensor_value_info("x", float32, ["n", 6])],
        [helper.make_tensor_value_info("y", float32, ["n", 4])],
        [numpy_helper.from_array(weight, "weight")],
    )
    artifacts.generate_artifacts(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        requires_grad=["weight"],
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=tmp_path,
        qat=Int8(momentum=0.5, reduce_range=False),
    )
    training = Training(tmp_path)
    low, high = 0.0, 0.0
    for step, factor in enumerate((1.0, 2.0)):
        given = (x * np.float32(factor)).astype(np.float32)
        kept = 0.5 * step
        low, high = kept * low + (1 - kept) * given.min(), kept * high + (1 - kept) * given.max()
        scale = (max(high, 0) - min(low, 0)) / 255
        inputs = quantized(given, scale, round(-min(low, 0) / scale), 0, 255)
        inside = quantized(weight, np.abs(weight).max(axis=0) / 127, 0, -128, 127)
        error = inputs @ inside - target
        loss = training.loss(given, target)
        assert loss == pytest.approx(np.mean(error**2), rel=1e-4)
        gradient = dict(training.state.parameters)["weight"].grad
        np.testing.assert_allclose(gradient, inputs.T @ error * 2 / error.size, rtol=1e-3, atol=1e-5)
        training.module.lazy_reset_grad()
    spans = {name: p.data for name, p in training.state.parameters if name.endswith("/range")}
    np.testing.assert_allclose(spans["int8/x/range"], [low, high], rtol=1e-6)
    CheckpointState.save_checkpoint(training.state, tmp_path / "saved")
    again = Training(tmp_path, checkpoint="saved")
    assert again.evaluate(x, target) == training.evaluate(x, target)


@pytest.mark.parametrize("weights", ["per_channel", "per_tensor"])
def test_onnxruntime_has_the_accuracy_of_the_trained_network(
    tmp_path: pathlib.Path, digits: tuple[Array, Array, Array, Array], weights: str
) -> None:
    x, y, test_x, test_y = digits
    before = Trainer(network(), loss="cross_entropy", learning_rate=3e-3, metrics=["accuracy"])
    before.fit((x, y), 4, verbose=False)
    before.export(tmp_path / "float.onnx")
    trainer = Trainer(
        tmp_path / "float.onnx",
        loss="cross_entropy",
        learning_rate=1e-3,
        metrics=["accuracy"],
        qat=Int8(weights=weights),
    )
    trainer.fit((x, y), 2, verbose=False)
    trainer.export(tmp_path / "int8.onnx")
    model = onnx.load(tmp_path / "int8.onnx")
    assert {opset.domain for opset in model.opset_import} == {""}
    kinds = {t.name: t.data_type for t in model.graph.initializer}
    stored = [kinds.get(node.input[0]) for node in model.graph.node if node.op_type == "DequantizeLinear"]
    assert stored.count(onnx.TensorProto.INT8) == 3
    assert len(stored) == 6
    (scores,) = onnxruntime.InferenceSession(tmp_path / "int8.onnx").run(None, {"image": test_x})
    mine = trainer.predict(test_x)
    found = trainer.evaluate((test_x, test_y))["accuracy"]
    assert found > 0.9
    assert abs((scores.argmax(axis=1) == test_y).mean() - found) <= 0.002
    assert (scores.argmax(axis=1) == mine.argmax(axis=1)).mean() > 0.995


def test_a_trained_network_is_quantized_without_training(
    tmp_path: pathlib.Path, digits: tuple[Array, Array, Array, Array]
) -> None:
    x, y, test_x, _ = digits
    trainer = Trainer(network(), loss="cross_entropy", learning_rate=3e-3)
    trainer.fit((x, y), 6, verbose=False)
    trainer.export(tmp_path / "float.onnx")
    batches = [{"image": x[i : i + 100]} for i in range(0, 300, 100)]
    made = artifacts.quantize_static(onnx.load(tmp_path / "float.onnx"), batches)
    (scores,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"image": test_x})
    expected = trainer.predict(test_x)
    assert (scores.argmax(axis=1) == expected.argmax(axis=1)).mean() > 0.98
    assert np.abs(scores - expected).max() > 1e-4


def test_a_quantized_network_keeps_what_graphs_inside_nodes_read() -> None:
    """Here tables that a Loop looks up."""
    path = pathlib.Path(__file__).parents[1] / "models" / "data" / "dlrm_bags" / "dynamo_20.onnx"
    feeds = {
        "dense": random.normal(size=(8, 6)).astype(np.float32),
        "categories": random.integers(0, 10, (8, 3, 4)),
    }
    made = artifacts.quantize_static(onnx.load(path), [feeds])
    found, expected = (
        onnxruntime.InferenceSession(model).run(None, feeds)[0]
        for model in (made.SerializeToString(), path.read_bytes())
    )
    np.testing.assert_allclose(found, expected, atol=0.05)


def test_what_cannot_be_quantized_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected a model of opset 13 or later, .* found 11"):
        Trainer(network(11), loss="cross_entropy", qat=Int8())
    with pytest.raises(ValueError, match="expected a Conv, Gemm or MatMul with a float32 weight"):
        Trainer(network(), loss="cross_entropy", qat=Int8(exclude=["*.weight"]))
    with pytest.raises(ValueError, match="weights: expected per_channel or per_tensor, found 'row'"):
        Int8(weights="row")


def pictures(count: int, seed: int) -> tuple[Array, Array]:
    """Return colored shapes, [count, 3, 16, 16], and which of ten each is: five shapes, with or without stripes.

    Place, size, both colors and noise are random, so that neither a pixel nor a mean tells the class.
    """
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 10, count)
    y, x = np.mgrid[0:16, 0:16].astype(np.float32)
    made = np.empty((count, 3, 16, 16), np.float32)
    for picture, kind in zip(made, kinds, strict=True):
        size, (top, left) = rng.uniform(4, 6), rng.uniform(6, 9, 2)
        down, right = np.abs(y - top), np.abs(x - left)
        inside = [
            np.hypot(down, right) < size,
            np.maximum(down, right) < size * 0.85,
            down + right < size * 1.2,
            np.minimum(down, right) < size * 0.3,
            np.abs(np.hypot(down, right) - size * 0.8) < size * 0.25,
        ][kind % 5]
        stripes = (np.floor((x + y) / 2) % 2 == 0) & (kind >= 5)
        shape, ground = rng.uniform(0, 1, (2, 3, 1, 1))
        shape = np.where(np.abs(shape - ground).max() < 0.4, 1 - ground, shape)
        picture[:] = np.where(inside & ~stripes, shape, ground) + rng.normal(0, 0.08, (3, 16, 16))
    return made, kinds


@pytest.mark.thorough
def test_a_network_for_colored_pictures_keeps_its_accuracy_with_8_bits(tmp_path: pathlib.Path) -> None:
    x, y = pictures(4000, 1)
    test_x, test_y = pictures(2000, 2)
    settings: dict[str, Any] = {"loss": "cross_entropy", "metrics": ["accuracy"], "schedule": "cosine"}
    before = Trainer(ortrain.models.cnn((3, 16, 16), 10), learning_rate=2e-3, **settings)
    before.fit(x, y, 12, verbose=False)
    before.export(tmp_path / "float.onnx")
    trainer = Trainer(tmp_path / "float.onnx", qat=Int8(), learning_rate=3e-4, **settings)
    trainer.fit(x, y, 4, verbose=False)
    trainer.export(tmp_path / "int8.onnx")
    trained = trainer.evaluate(test_x, test_y)["accuracy"]

    batches = [{"x": x[i : i + 100]} for i in range(0, 500, 100)]
    after = artifacts.quantize_static(onnx.load(tmp_path / "float.onnx"), batches).SerializeToString()
    (tmp_path / "after.onnx").write_bytes(after)

    def accuracy(name: str) -> float:
        session = onnxruntime.InferenceSession(tmp_path / name)
        (scores,) = session.run(None, {session.get_inputs()[0].name: test_x})
        return float((scores.argmax(axis=1) == test_y).mean())

    assert trained > 0.9
    assert abs(accuracy("int8.onnx") - trained) <= 0.002
    assert accuracy("int8.onnx") >= accuracy("after.onnx") - 0.002  # quantized without training
    assert accuracy("int8.onnx") >= accuracy("float.onnx") - 0.01


@pytest.mark.parametrize("given", ["int8", True, Int8])
def test_other_settings_than_int8_are_named(given: Any) -> None:
    with pytest.raises(TypeError, match=r"qat: expected ortrain.artifacts.Int8\(\), found "):
        Trainer(network(), "cross_entropy", qat=given)
