"""The trainer equals the loop that it stands for, and does what its arguments say."""

from __future__ import annotations

import numpy as np
import onnxruntime
import ortrain
import pytest
import small
from ortrain import InferenceSession, Trainer, onnxblock
from ortrain.api import CheckpointState, Module, Optimizer
from ortrain.onnxblock import optim
from ortrain.trainer import LambdaCallback, plot


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small.make_artifacts(tmp_path_factory.mktemp("artifacts"))


X, Y = small.rows(100)


def by_hand(folder, batches, rates, every=1):
    ortrain.set_seed(5)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    losses = []
    for number, (x, y) in enumerate(batches, start=1):
        losses.append(float(module(x, y)[0]))
        if number % every == 0:
            for _, parameter in state.parameters:
                if parameter.requires_grad:
                    parameter.grad = parameter.grad / np.float32(every)
            optimizer.set_learning_rate(rates[number // every - 1])
            optimizer.step()
            module.lazy_reset_grad()
    return losses, {name: parameter.data for name, parameter in state.parameters}


@pytest.mark.parametrize("prefetch", [0, 3])
@pytest.mark.parametrize("every", [1, 2])
def test_it_equals_the_loop(folder, prefetch, every):
    batches = [(X[i : i + 10], Y[i : i + 10]) for i in range(0, 100, 10)]
    steps = len(batches) // every
    rates = [3e-3 * (steps - step) / steps for step in range(steps)]
    losses, parameters = by_hand(folder, batches, rates, every)
    trainer = Trainer(folder, learning_rate=3e-3, schedule="linear", accumulate=every, seed=5)
    found = []
    record = LambdaCallback(on_train_batch_end=lambda batch, logs: found.append(logs["loss"]))
    history = trainer.fit(batches, prefetch=prefetch, callbacks=[record], verbose=False)
    assert found == losses
    assert history["loss"] == [pytest.approx(np.mean(losses))]
    for name, parameter in trainer.state.parameters:
        assert parameter.data.tobytes() == parameters[name].tobytes(), name


# The last batches have 4, 10, 100 and 36 rows.
@pytest.mark.parametrize(("batch_size", "accumulate"), [(32, 3), (30, 4), (100, 2), (64, 7)])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_accumulated_batches_of_any_size_are_one_large_batch(batch_size, accumulate, optimizer):
    model = ortrain.models.mlp(8, 3, (16,))
    several = Trainer(model, "cross_entropy", optimizer, learning_rate=0.01, accumulate=accumulate)
    large = Trainer(model, "cross_entropy", optimizer, learning_rate=0.01)
    batches = [(X[i : i + batch_size], Y[i : i + batch_size]) for i in range(0, 100, batch_size)]
    steps = [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]
    several.fit((X, Y), 2, batch_size=batch_size, shuffle=False, verbose=False)
    large.fit([tuple(map(np.concatenate, zip(*step, strict=True))) for step in steps], 2, verbose=False)
    assert several.step == large.step == 2 * len(steps)
    for name, parameter in large.state.parameters:
        found = several.state.parameters[name].data
        np.testing.assert_allclose(found, parameter.data, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("kind", ["model", "path"])
def test_a_model_learns_is_evaluated_and_exported(tmp_path, kind):
    import onnx

    model = small.model()
    if kind == "path":
        onnx.save(model, tmp_path / "model.onnx")
        model = tmp_path / "model.onnx"
    trainer = Trainer(
        model,
        loss="cross_entropy",
        learning_rate=1e-2,
        metrics=["accuracy", "top2"],
        requires_grad=small.TRAINED,
        frozen_params=small.FROZEN,
    )
    x, y = small.rows(600)
    history = trainer.fit((x, y), epochs=10, validation=0.25, verbose=False)
    assert set(history) == {
        "loss", "accuracy", "top2", "learning_rate", "val_loss", "val_accuracy", "val_top2"
    }  # fmt: skip
    assert all(len(values) == 10 for values in history.values())
    assert history["val_accuracy"][-1] > 0.85 > 0.6 > history["accuracy"][0]
    found = trainer.evaluate({"x": x, trainer.inputs.names[1]: y}, batch_size=64)
    scores = trainer.predict(x, batch_size=100)
    assert scores.shape == (600, 3)
    assert found["accuracy"] == pytest.approx((scores.argmax(axis=1) == y).mean())
    each = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(600), y]
    assert found["loss"] == pytest.approx(each.mean(), rel=1e-4)
    for data in (
        (x, y),
        {"x": x},
        [(x[:300], y[:300]), (x[300:],)],
        iter([x[:300], x[300:]]),
    ):
        np.testing.assert_allclose(trainer.predict(data), scores, rtol=1e-5, atol=1e-6)
    trainer.export(tmp_path / "trained.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx")
    np.testing.assert_allclose(session.run(None, {"x": x})[0], scores, rtol=1e-3, atol=1e-4)
    trainer.fit((x, y), verbose=False)
    assert np.abs(trainer.predict(x) - scores).max() > 1e-3, "predict uses old parameters"
    trainer.export(tmp_path / "hidden.onnx", ["hidden"])
    assert InferenceSession(tmp_path / "hidden.onnx").run(None, {"x": x})[0].shape == (600, 16)


def test_a_picture_of_the_history(tmp_path):
    history = {
        "loss": [2.0, 1.0],
        "val_loss": [2.5, 1.5],
        "accuracy": [0.1, 0.2],
        "confusion_matrix": [[[1]]] * 2,
    }
    figure = plot(history, tmp_path / "curves.png")
    assert [axes.get_title() for axes in figure.axes] == ["loss", "accuracy"]
    assert [line.get_ydata().tolist() for line in figure.axes[0].lines] == [[2.0, 1.0], [2.5, 1.5]]
    assert (tmp_path / "curves.png").stat().st_size > 5000
    assert figure._repr_png_().startswith(b"\x89PNG")  # which notebooks ask for
    with pytest.raises(ValueError, match="at least one epoch"):
        plot({})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"loss": "crossentropy"},
            r"no loss 'crossentropy' \(did you mean 'cross_entropy' or .*\?\); known are cross_entropy",
        ),
        ({"optimizer": "adamww"}, r"no optimizer 'adamww' \(did you mean 'adamw'.*\?\); known are .*adamw"),
        ({"metrics": ["f2"]}, 'no metric "f2"'),
        ({"schedule": "cosin"}, "schedule: expected one of constant, cosine, .*, found .cosin."),
        ({"accumulate": 0}, "accumulate: expected 1 or more"),
        ({"seed": -1}, "seed: expected 0 or more"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Trainer(small.model(), **{"loss": "cross_entropy", **arguments})


def test_metrics_need_an_output(tmp_path):
    small.make_artifacts(tmp_path, outputs=())
    with pytest.raises(ValueError, match="metric 'accuracy': expected an output besides the loss"):
        Trainer(tmp_path, metrics=["accuracy"])
    trainer = Trainer(tmp_path, metrics=["perplexity"])
    history = trainer.fit((X, Y), batch_size=100, verbose=False)
    assert history["perplexity"] == [pytest.approx(np.exp(history["loss"][0]))]
    with pytest.raises(ValueError, match="expected outputs besides the loss"):
        trainer.predict(X)
    assert Trainer(tmp_path, outputs=["scores"]).predict(X).shape == (100, 3)


def test_a_folder_without_artifacts_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"expected training_model.onnx among the artifacts"):
        Trainer(tmp_path)


def test_an_epoch_without_batches_is_an_error(folder):
    with pytest.raises(ValueError, match="at least one batch in epoch 1"):
        Trainer(folder).fit([], verbose=False)


def test_schedules_that_need_the_number_of_steps_say_so(folder):
    trainer = Trainer(folder, schedule="cosine")
    with pytest.raises(ValueError, match="give fit steps_per_epoch"):
        trainer.fit(iter([(X, Y)]), verbose=False)


def test_an_optimizer_with_parameter_groups(tmp_path):
    adamw = optim.AdamW(weight_decay=0.1, param_groups=[optim.no_decay()])
    trainer = Trainer(
        small.model(), loss="cross_entropy", optimizer=adamw, artifact_directory=tmp_path / "artifacts"
    )
    groups = trainer.optimizer.param_groups
    assert [name for name, _ in groups] == ["group0", "no_decay"]
    groups["no_decay"].learning_rate_factor = 0.5
    trainer.fit((X, Y), epochs=1, verbose=False)
    trainer.save(tmp_path / "saved")
    other = Trainer(tmp_path / "artifacts")
    other.fit((X, Y), epochs=2, verbose=False, resume=tmp_path / "saved")
    assert other.optimizer.param_groups["no_decay"].learning_rate_factor == 0.5


class LossOfShapeOne(onnxblock.Block):
    """The mean squared error, as a value of shape [1]."""

    def __init__(self):
        super().__init__()
        self.mean = onnxblock.loss.MSELoss()
        self.one = onnxblock.blocks.Constant(1.0)
        self.multiply = onnxblock.blocks.Mul()

    def build(self, output_name):
        return self.multiply(self.mean(output_name), self.one())


def test_a_loss_with_one_element_is_a_loss():
    target = np.random.default_rng(3).normal(size=(len(X), 3)).astype(np.float32)
    trainer = Trainer(small.model(), loss=LossOfShapeOne(), learning_rate=1e-2)
    assert np.shape(trainer.module(X, target)[0]) == (1,)
    history = trainer.fit(X, target, epochs=4, verbose=False)
    assert history["loss"][-1] < history["loss"][0]
    squares = (trainer.predict(X) - target) ** 2
    assert trainer.evaluate(X, target)["loss"] == pytest.approx(squares.mean(), rel=1e-5)


def test_the_predictions_of_its_artifacts_are_optional_outputs(tmp_path):
    trainer = Trainer(small.model(), loss="cross_entropy", artifact_directory=tmp_path)

    def module(**options):
        state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
        return Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx", **options)

    alone = module()
    assert (len(alone.output_names()), np.shape(alone(X, Y))) == (1, ())
    options = ortrain.SessionOptions()
    options.add_session_config_entry("ortrain.optional_outputs", "1")
    loss, scores = module(session_options=options).eval()(X, Y)
    alone = module()
    assert loss == alone.eval()(X, Y)
    np.testing.assert_array_equal(scores, trainer.predict(X))
