"""Models of Keras train in ortrain as in Keras, all variables, under their paths."""

from __future__ import annotations

import re

import keras
import numpy as np
import onnx
import ortrain.keras
import pytest
from keras import layers as L
from keras_comparison import compare, made
from keras_models import LARGE, SMALL
from ortrain import artifacts
from ortrain.api import CheckpointState
from ortrain.trainer import Trainer
from training import Training


def data(shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("name", [*SMALL, *LARGE])
def test_a_model_trains_as_in_keras(name, tmp_path):
    make = {**SMALL, **LARGE}[name]
    found = compare(make, tmp_path, 0.05 if name in SMALL else 1e-3)
    model = made(make, "float32")
    assert set(found.report.trained) == {variable.path for variable in model.trainable_variables}
    assert set(found.trained) == set(found.report.trained)
    assert found.report.unused == ()
    assert found.loss < 1e-5
    # Where batch normalization amplifies rounding, Keras in float32 is as far from Keras in float64.
    assert max(found.gradients.values()) < 5 * max(found.gradients_of_keras.values()) + 1e-5
    assert found.losses < 5 * found.losses_of_keras + 1e-5
    if name in SMALL:
        assert max(found.weights.values()) < 1e-5


def test_a_frozen_layer_stays_as_it_is(tmp_path):
    model = made(SMALL["fine-tuned"], "float32")
    report = ortrain.keras.export(model, tmp_path / "model.onnx")
    frozen = [variable.path for variable in model.non_trainable_variables]
    assert list(report.frozen) == frozen
    made_here = artifacts.generate_artifacts(
        tmp_path / "model.onnx",
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=tmp_path,
    )
    training = Training(tmp_path)
    before = training.parameters()
    training.step(np.ones((4, 5), np.float32), np.ones((4, 3), np.float32))
    after = training.parameters()
    assert all((before[name] == after[name]).all() for name in frozen)
    assert any((before[name] != after[name]).any() for name in made_here.trained)


def test_dropout_drops_in_training_alone(tmp_path):
    model = keras.Sequential([keras.Input((5,)), L.Dense(64), L.Dropout(0.5)])
    artifacts.generate_artifacts(
        model,
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=tmp_path,
        additional_output_names=["output"],
    )
    training, x = Training(tmp_path), np.ones((4, 5), np.float32)
    expected = model.predict(x, verbose=0)
    training.module.eval()
    np.testing.assert_allclose(training.module(x, expected)[1], expected, rtol=1e-5, atol=1e-6)
    training.module.train()
    assert 0.3 < float(np.mean(training.module(x, expected)[1] == 0)) < 0.7


def test_weights_come_back_by_path(tmp_path):
    model = made(SMALL["Conv"], "float32")
    artifacts.generate_artifacts(model, loss=artifacts.LossType.MSELoss, artifact_directory=tmp_path)
    start = [np.array(variable) for variable in model.variables]
    for variable in model.variables:
        variable.assign(variable + 1)
    assert ortrain.keras.load_into(model, tmp_path) == ([], [])
    assert all(np.array_equal(a, b) for a, b in zip(start, model.variables, strict=True))
    for variable in model.variables:
        variable.assign(variable + 1)
    assert ortrain.keras.update_checkpoint(tmp_path / "checkpoint", model) == ([], [])
    found = CheckpointState.load_checkpoint(tmp_path / "checkpoint").parameters
    assert all(np.array_equal(p.data, v) for v in model.variables for n, p in found if n == v.path)
    stranger = keras.Sequential([keras.Input((5,)), L.Dense(3, name="other")], name="other")
    with pytest.raises(ValueError, match=r"no weight has the same name on both sides, such as .*other/other"):
        ortrain.keras.load_into(stranger, tmp_path)
    missing, unexpected = ortrain.keras.load_into(
        stranger, {"other/other/bias": np.ones(3), "more": np.ones(3)}
    )
    assert (missing, unexpected) == (["other/other/kernel"], ["more"])


def test_weights_come_back_to_a_model_that_was_read_from_a_file(tmp_path):
    """The paths of its variables lack the name of the model; those of one that was built again have another name."""
    model = made(SMALL["Conv"], "float32")
    model.save(tmp_path / "model.keras")
    read = keras.models.load_model(tmp_path / "model.keras")
    renamed = keras.models.clone_model(model)
    renamed.name = "other"
    x = data((8, 8, 8, 2))
    for first, second in ((model, read), (read, model), (model, renamed)):
        trainer = Trainer(first, loss="cross_entropy", learning_rate=0.1)
        trainer.fit(x, np.arange(8) % 3, verbose=False)
        assert ortrain.keras.load_into(second, trainer) == ([], [])
        np.testing.assert_allclose(second(x), trainer.predict(x), rtol=1e-5, atol=1e-5)
        second.variables[0].assign(second.variables[0] + 1)
        assert ortrain.keras.update_checkpoint(trainer, second) == ([], [])
        np.testing.assert_allclose(second(x), trainer.predict(x), rtol=1e-5, atol=1e-5)


class Subclass(keras.Model):
    def __init__(self):
        super().__init__()
        self.layer = L.Dense(3)

    def call(self, x):
        return self.layer(x)


def test_a_subclass_is_given_an_example_of_its_inputs(tmp_path):
    """It is built by that, if it was never called."""
    x = np.zeros((2, 5), np.float32)
    with pytest.raises(
        ValueError, match=r"does not know its inputs; pass example arguments as args, .*args=\(x\[:1\],\)"
    ):
        ortrain.keras.export(Subclass(), tmp_path / "model.onnx")
    called = Subclass()
    called(x)
    for model in (Subclass(), called):
        report = ortrain.keras.export(model, tmp_path / "model.onnx", args=x)
        assert len(report.trained) == 2
        dims = onnx.load(tmp_path / "model.onnx").graph.input[0].type.tensor_type.shape.dim
        assert dims[0].dim_param == "batch"
        assert dims[1].dim_value == 5


class TwoInputs(keras.Model):
    def __init__(self):
        super().__init__()
        self.layer = L.Dense(3)

    def call(self, image, extra):
        return self.layer(keras.ops.concatenate([image, extra], -1))


def two_inputs(kind):
    a, b = keras.Input((5,), name="image"), keras.Input((2,), name="extra")
    if kind == "dict":
        a, b = keras.Input((5,)), keras.Input((2,))
    output = L.Dense(3)(L.Concatenate()([a, b]))
    return keras.Model({"image": a, "extra": b} if kind == "dict" else [a, b], output)


@pytest.mark.parametrize("kind", ["list", "dict", "subclass"])
def test_a_trainer_takes_a_model_with_two_inputs(kind):
    x, z, y = data((40, 5)), data((40, 2)), np.arange(40) % 3
    model = TwoInputs() if kind == "subclass" else two_inputs(kind)
    trainer = Trainer(model, loss="cross_entropy", args=(x[:2], z[:2]) if kind == "subclass" else None)
    assert sorted(trainer.inputs.names) == ["extra", "image", "labels"]
    trainer.fit({"image": x, "extra": z, "labels": y}, epochs=2, verbose=False)
    assert ortrain.keras.load_into(model, trainer) == ([], [])
    expected = {"list": [x, z], "dict": {"image": x, "extra": z}}
    expected = model(x, z) if kind == "subclass" else model(expected[kind])
    np.testing.assert_allclose(trainer.predict({"image": x, "extra": z}), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("given", ["inputs", "args"])
def test_a_trainer_takes_a_model_and_gives_its_weights_back(policy, given):
    layers = [L.Dense(8), L.BatchNormalization(), L.ReLU(), L.Dropout(0.1), L.Dense(3)]
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        first = [keras.Input((5,))] if given == "inputs" else []
        model = keras.Sequential(
            [*first, *(layer.from_config({**layer.get_config(), "dtype": policy}) for layer in layers)]
        )
    finally:
        keras.config.set_dtype_policy(before)
    x, y = data((40, 5)), np.arange(40) % 3
    trainer = Trainer(
        model, loss="cross_entropy", args=None if given == "inputs" else x[:2], metrics=["accuracy"]
    )
    trainer.fit(x, y, epochs=2, batch_size=8, verbose=False)
    assert ortrain.keras.load_into(model, trainer) == ([], [])
    tolerance = {"float32": 1e-5, "mixed_float16": 0.01, "mixed_bfloat16": 0.1}[policy]

    def check():
        found = np.asarray(trainer.predict(x), np.float32)
        np.testing.assert_allclose(found, model.predict(x, verbose=0), atol=tolerance)

    check()
    assert any(np.abs(v).max() > 0 for v in model.non_trainable_variables if "moving_mean" in v.path)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, y, verbose=0)
    assert ortrain.keras.update_checkpoint(trainer, model) == ([], [])
    check()
    trainer.fit(x, y, batch_size=7, verbose=False)


def test_the_classes_are_in_the_last_dimension(tmp_path):
    """As in the losses of Keras; here the scores of six steps, whose number differs from that of the classes."""
    model = keras.Sequential([keras.Input((6, 4)), L.LSTM(5, return_sequences=True), L.Dense(3)])
    x, y = data((8, 6, 4)), np.random.default_rng(1).integers(0, 3, (8, 6))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    loss, accuracy = model.evaluate(x, y, verbose=0)
    found = Trainer(model, loss="cross_entropy", metrics=["accuracy"]).evaluate(x, y)
    assert found == {"loss": pytest.approx(loss, rel=1e-5), "accuracy": pytest.approx(accuracy, abs=1e-6)}


def test_layers_that_are_frozen_later_stay():
    """Among them a batch normalization, whose statistics are in the checkpoint all the same."""
    model = made(SMALL["Conv"], "float32")
    model.layers[1].moving_mean.assign(data(4))
    x, y = data((8, 8, 8, 2)), np.arange(8) % 3
    model.layers[0].trainable = model.layers[1].trainable = False
    frozen = [np.array(v) for layer in model.layers[:2] for v in layer.variables]
    head = np.array(model.layers[-1].kernel)
    trainer = Trainer(model, loss="cross_entropy", optimizer="sgd", learning_rate=0.1)
    trainer.fit(x, y, verbose=False)
    assert ortrain.keras.load_into(model, trainer) == ([], [])
    found = [np.array(v) for layer in model.layers[:2] for v in layer.variables]
    assert all(np.array_equal(a, b) for a, b in zip(frozen, found, strict=True))
    assert not np.array_equal(head, model.layers[-1].kernel)
    expected = model(x)
    for variable in model.variables:
        variable.assign(variable + 1)
    assert ortrain.keras.load_into(model, trainer) == ([], [])
    np.testing.assert_allclose(model(x), expected, rtol=1e-5, atol=1e-6)
    model.layers[1].moving_mean.assign(data(4) + 1)
    assert ortrain.keras.update_checkpoint(trainer, model) == ([], [])
    np.testing.assert_allclose(trainer.predict(x), model(x), rtol=1e-5, atol=1e-6)
    model.trainable = False
    with pytest.raises(ValueError, match=r"no parameter to train; .*not trained by the network"):
        Trainer(model, loss="cross_entropy")


def test_what_the_model_does_in_keras_alone_is_said(tmp_path, caplog):
    model = keras.Sequential(
        [
            keras.Input((5,)),
            L.Dense(4, kernel_regularizer="l2", kernel_constraint="max_norm"),
            L.Dense(4, activity_regularizer="l1"),
            L.SpectralNormalization(L.Dense(3)),
            L.Softmax(),
        ]
    )
    report = ortrain.keras.export(model, tmp_path / "model.onnx")
    assert len(report.trained) == 6
    assert re.search(r"without its regularizers, of \S+dense\S*/kernel, \S+dense", caplog.text)
    assert "without its constraints, of" in caplog.text
    assert "assigns new values to" in caplog.text
    assert model.layers[1].activity_regularizer is not None
    caplog.clear()
    made_here = Trainer(model, loss="cross_entropy")
    scores = re.search(r"applies another Softmax. The scores before it are '(.*?)'", caplog.text)[1]
    caplog.clear()
    Trainer(model, loss="cross_entropy", output=scores)
    assert "Softmax" not in caplog.text
    assert made_here.outputs == ["output"]


def test_what_is_wrong_is_said(tmp_path):
    with pytest.raises(TypeError, match=r"expected a keras.Model, found int"):
        ortrain.keras.export(3, tmp_path / "model.onnx")
    with pytest.raises(ValueError, match=r"dynamic: expected 'batch' or None, found 'all'"):
        ortrain.keras.export(made(SMALL["Dense"], "float32"), tmp_path / "model.onnx", dynamic="all")
    eigen = keras.Sequential([keras.Input((3, 3)), L.Lambda(lambda x: keras.ops.linalg.qr(x)[0]), L.Dense(2)])
    with pytest.raises(ValueError, match=r"(?s)tf2onnx .* cannot write the model .*Qr"):
        ortrain.keras.export(eigen, tmp_path / "model.onnx")
    groups = keras.Sequential([keras.Input((4, 4, 4, 4)), L.Conv3D(4, 3, groups=2)])
    with pytest.raises(
        ValueError, match=r"cannot write the model .*\n.*three-dimensional convolutions with groups"
    ):
        ortrain.keras.export(groups, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match=r"has no variables yet; call it once"):
        ortrain.keras.load_into(Subclass(), {})


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ("x", TypeError, "args: expected arrays or tensors, found str"),
        ([[1.0, 2.0]], TypeError, "args: expected arrays or tensors, found float"),
        ((), TypeError, "args: expected arrays or tensors, found none"),
        (np.float32(1), ValueError, "args: expected arrays with a batch dimension, found a single number"),
        (np.zeros(5, np.float32), ValueError, r"args: expected the shape \(None, 5\), found \(None,\)"),
        (
            np.zeros((2, 3), np.float32),
            ValueError,
            r"cannot be called with them: .*expected shape=\(None, 5\)",
        ),
        ((np.zeros((2, 5), np.float32),) * 2, TypeError, r"cannot be called with them: .*'training'"),
    ],
)
def test_what_is_wrong_with_args_is_said(args, error, message):
    with pytest.raises(error, match=message):
        Trainer(made(SMALL["Dense"], "float32"), loss="cross_entropy", args=args)


def test_a_model_without_inputs_or_args_is_refused():
    with pytest.raises(ValueError, match=r"does not know its inputs; .*or begin it with keras.Input"):
        Trainer(keras.Sequential([L.Dense(3)]), loss="cross_entropy")
