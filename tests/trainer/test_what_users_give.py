"""Data and names as users give them: accepted where it is certain what is meant, rejected with a remedy otherwise."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import ortrain
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import OrtrainError, Trainer, onnxblock
from ortrain.trainer import Callback, EarlyStopping, ModelCheckpoint, ReduceLROnPlateau

RNG = np.random.default_rng(5)
X = RNG.normal(size=(40, 6)).astype(np.float32)
LABELS = np.arange(40) % 3
TARGETS = RNG.normal(size=(40, 1)).astype(np.float32)
NAMES = np.array(["cat", "dog", "eel"])


def linear(rows: tuple[int, ...], outputs: int, batch: int | str = "batch") -> onnx.ModelProto:
    """From ``x``, float32 ``[batch, *rows]``, to ``scores``, float32 ``[batch, outputs]``."""
    weights = np.random.default_rng(1).normal(size=(int(np.prod(rows)), outputs)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("MatMul", ["flat", "w"], ["scores"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, *rows])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [batch, outputs])],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def classifier(**arguments) -> Trainer:
    return Trainer(linear((6,), 3), loss="cross_entropy", **arguments)


def regressor(**arguments) -> Trainer:
    return Trainer(linear((6,), 1), loss="mse", **arguments)


def losses(trainer: Trainer, *data, **arguments) -> list[float]:
    return trainer.fit(*data, epochs=2, verbose=False, **arguments)["loss"]


EXPECTED = losses(classifier(), (X, LABELS))


@pytest.mark.parametrize(
    "data",
    [
        (X, LABELS),
        (X.tolist(), LABELS.tolist()),
        (X, LABELS[:, None]),
        (X, LABELS.astype(np.float64)),
        (X, np.eye(3)[LABELS]),
        (X, np.eye(3, dtype=np.int64)[LABELS]),
        (X, np.eye(3, dtype=bool)[LABELS]),
        (X, NAMES[LABELS]),
        (X, NAMES[LABELS].astype(object).tolist()),
        ((X,), LABELS),
        ({"x": X}, LABELS),
    ],
)
def test_inputs_and_targets_may_be_given_apart_and_labels_in_any_form(data):
    assert losses(classifier(), *data) == EXPECTED


def test_the_second_argument_may_be_the_number_of_epochs():
    assert classifier().fit((X, LABELS), 2, verbose=False)["loss"] == EXPECTED


def test_evaluate_takes_inputs_and_targets_apart():
    trainer = classifier()
    assert trainer.evaluate(X, LABELS) == trainer.evaluate((X, LABELS))


@pytest.mark.parametrize("shape", [(40,), (40, 1), (40, 1, 1)])
def test_targets_of_a_regression_have_the_shape_of_the_scores(shape):
    assert losses(regressor(), X, TARGETS.reshape(shape)) == losses(regressor(), (X, TARGETS))


@pytest.mark.parametrize("loss", ["mse", "l1", "bce_with_logits"])
@pytest.mark.parametrize("opset", [12, 17])
def test_targets_are_not_broadcast_if_the_model_states_no_shape(loss, opset, tmp_path):
    model = linear((6,), 1)
    model.opset_import[0].version = opset
    model.graph.node[1].output[0] = "product"
    model.graph.node.append(helper.make_node("Reshape", ["product", "shape"], ["scores"]))
    model.graph.input.append(helper.make_tensor_value_info("shape", TensorProto.INT64, None))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    trainer = Trainer(model, loss=loss, artifact_directory=tmp_path)
    inputs = (X, np.array([40, 1]))
    target = abs(np.tanh(TARGETS))
    x = X.astype(np.float64) @ numpy_helper.to_array(model.graph.initializer[0])
    expected = {
        "mse": (x - target) ** 2,
        "l1": abs(x - target),
        "bce_with_logits": np.logaddexp(0, x) - x * target,
    }
    assert trainer.module(*inputs, target)[0] == pytest.approx(expected[loss].mean(), rel=1e-5)
    with pytest.raises(
        ValueError, match=r"input 1 of shape \[1, 40\] does not match input 0 of shape \[1, 40, 1\]"
    ):
        trainer.module(*inputs, target[:, 0])


def language_model() -> onnx.ModelProto:
    """From ``x``, float32 ``[batch, 4, 6]``, to ``scores``, float32 ``[batch, 4, 3]``: scores of every token."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["scores"])],
        "language_model",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4, 6])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 4, 3])],
        [numpy_helper.from_array(np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_language_model_has_its_classes_last():
    x, labels = RNG.normal(size=(40, 4, 6)).astype(np.float32), RNG.integers(0, 3, (40, 4))
    with pytest.raises(
        ValueError, match=r"expected int64 \[batch, 3\], found .*\(40, 4\).*CrossEntropyLoss\(axis=-1\)"
    ):
        losses(Trainer(language_model(), loss="cross_entropy"), x, labels)
    trainer = Trainer(
        language_model(),
        loss=onnxblock.loss.CrossEntropyLoss(axis=-1),
        metrics=["accuracy"],
        learning_rate=0.1,
    )
    trainer.fit(x, labels, epochs=2, verbose=False)
    found = trainer.evaluate(x, labels)["accuracy"]
    assert found == pytest.approx(float((trainer.predict(x).argmax(-1) == labels).mean()))


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("sparse_categorical_crossentropy", "cross_entropy"),
        ("CrossEntropyLoss", "cross_entropy"),
        ("binary_crossentropy", "bce_with_logits"),
        ("mean_squared_error", "mse"),
        ("l1_loss", "l1"),
    ],
)
def test_the_names_that_losses_have_elsewhere_lead_to_those_here(name, here):
    with pytest.raises(ValueError, match=f"did you mean '{here}'"):
        Trainer(linear((6,), 3), loss=name)


class SparseCategoricalCrossentropy:
    """As in Keras, where it has no base class of ours."""


class EarlyStoppingOfKeras:
    __module__ = "keras.callbacks"


EarlyStoppingOfKeras.__name__ = "EarlyStopping"


def test_objects_of_other_frameworks_are_named():
    with pytest.raises(TypeError, match=r"not SparseCategoricalCrossentropy; use LossType.CrossEntropyLoss"):
        Trainer(linear((6,), 3), loss=SparseCategoricalCrossentropy())
    with pytest.raises(
        TypeError, match=r"metrics: expected names, .*, found SparseCategoricalCrossentropy; known are"
    ):
        classifier(metrics=[SparseCategoricalCrossentropy()])
    message = (
        r"found keras.callbacks.EarlyStopping; ortrain.trainer has callbacks with the same names as Keras"
    )
    with pytest.raises(TypeError, match=message):
        classifier(callbacks=[EarlyStoppingOfKeras()])
    with pytest.raises(TypeError, match=message):
        classifier().fit(X, LABELS, callbacks=[EarlyStoppingOfKeras()])


@pytest.mark.parametrize(
    ("ending", "remedy"), [("keras", "keras.models.load_model"), ("pt", "torch.nn.Module")]
)
def test_files_of_other_frameworks_are_no_models(ending, remedy, tmp_path):
    file = tmp_path / f"model.{ending}"
    file.write_bytes(b"PK\3\4 something else")
    with pytest.raises(ValueError, match=f"is not an ONNX model: .*{remedy}"):
        Trainer(file, loss="mse")


def test_labels_that_are_no_classes_are_named():
    wrong = np.eye(3)[LABELS]
    wrong[7] = 0.5
    with pytest.raises(ValueError, match=r"numbers? of the class.*not one-hot either; y.argmax\(axis=1\)"):
        losses(classifier(), X, wrong)
    with pytest.raises(ValueError, match=r"the numbers of classes, found float64 with 0\.5 in row 7"):
        losses(classifier(), X, np.where(np.arange(40) == 7, 0.5, LABELS))


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_row_of_a_label_out_of_range_is_named(shuffle):
    labels = LABELS.copy()
    labels[[29, 35]] = 3
    message = "'labels': expected numbers of classes from 0 to 2, found 3 in row 29 of the data, and 1 more row has it"
    with pytest.raises(ValueError, match=message):
        losses(classifier(), X, labels, batch_size=8, shuffle=shuffle)
    with pytest.raises(ValueError, match="found 3 in row 5 of the batch"):
        losses(classifier(), [(X[24:32], labels[24:32])])
    with pytest.raises(ValueError, match="found 3 in row 29 of the data"):
        classifier().evaluate(X, labels)


def test_names_of_classes_are_learned_in_memory_and_checked_later():
    trainer = classifier()
    losses(trainer, X, NAMES[LABELS])
    assert trainer.classes == ["cat", "dog", "eel"]
    assert trainer.evaluate(X, NAMES[LABELS]) == trainer.evaluate(X, LABELS)
    with pytest.raises(
        ValueError,
        match=r"expected the classes cat, dog, eel, found 'dogs' in row 2 of the data \(did you mean 'dog'\?\)",
    ):
        trainer.evaluate(X[:3], np.array(["cat", "eel", "dogs"]))
    with pytest.raises(ValueError, match=r"found names such as 'cat'.*trainer.classes = "):
        losses(classifier(), [(X, NAMES[LABELS])])


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("memory", [True, False])
def test_the_row_with_nan_is_named(value, memory):
    x = X.copy()
    x[[13, 14], 2] = value
    data = (x, LABELS) if memory else [(x[8:16], LABELS[8:16])]
    row = "13 of the data" if memory else "5 of the batch"
    what = "NaN" if np.isnan(value) else "an infinity"
    with pytest.raises(
        OrtrainError,
        match=rf"epoch 1, batch \d: data: input 'x' has {what} in row {row} \(element \[2\]\), and 1 more row has such values",
    ):
        losses(classifier(), data, batch_size=8)
    with pytest.warns(UserWarning, match=f"has {what} in row {row}"):
        classifier().evaluate(data)


def test_a_training_that_diverges_is_told_from_bad_data():
    trainer = regressor(optimizer="sgd", learning_rate=1e8)
    with pytest.raises(
        OrtrainError,
        match=r"the training diverges. The last losses: .*lower learning rate than 1e\+08.*clip=1.0",
    ):
        trainer.fit(X * 1000, TARGETS, 20, verbose=False)
    trainer.learning_rate = 1e-9
    trainer.save(trainer.folder / "after.ckpt")  # no gradients are left behind


def test_pixels_of_unknown_scale_are_rejected():
    pixels = (abs(X) * 100).astype(np.uint8)
    with pytest.raises(
        ValueError, match=r"expected float32, found uint8 up to \d+, whose scale.*astype\(np.float32\) / 255"
    ):
        losses(classifier(), pixels, LABELS)
    with pytest.raises(ValueError, match="found uint8"):
        classifier().predict(pixels)
    assert losses(classifier(), (X > 0).astype(np.uint8), LABELS) == losses(
        classifier(), (X > 0).astype(np.float32), LABELS
    )


def test_channels_in_the_wrong_place_are_named():
    images = RNG.normal(size=(40, 5, 7, 3)).astype(np.float32)
    trainer = Trainer(linear((3, 5, 7), 3), loss="cross_entropy")
    with pytest.raises(
        ValueError,
        match=r"expected float32 \[batch, 3, 5, 7\], found the shape \(40, 5, 7, 3\).*transpose\(0, 3, 1, 2\)",
    ):
        losses(trainer, images, LABELS)
    assert trainer.predict(images.transpose(0, 3, 1, 2)).shape == (40, 3)
    last = Trainer(linear((5, 7, 3), 3), loss="cross_entropy")
    with pytest.raises(ValueError, match=r"its channels come first; x.transpose\(0, 2, 3, 1\)"):
        losses(last, images.transpose(0, 3, 1, 2), LABELS)
    with pytest.raises(ValueError, match=r"x.reshape\(-1, 3, 5, 7\) is right if"):
        losses(trainer, images.reshape(40, -1), LABELS)


@pytest.mark.parametrize("shape", [(40, 5, 7), (40, 35), (40, 5, 7, 1), (40, 1, 5, 7)])
def test_images_with_one_channel_are_accepted_in_every_shape(shape):
    images = RNG.normal(size=(40, 1, 5, 7)).astype(np.float32)
    expected = losses(Trainer(linear((1, 5, 7), 3), loss="cross_entropy"), images, LABELS)
    assert (
        losses(Trainer(linear((1, 5, 7), 3), loss="cross_entropy"), images.reshape(shape), LABELS) == expected
    )


def test_predict_takes_lists_of_rows():
    trainer = classifier()
    expected = trainer.predict(X[:4])
    for rows in (X[:4].tolist(), list(X[:4]), (X[:4],), [X[:2], X[2:4]]):
        np.testing.assert_array_equal(trainer.predict(rows), expected)
    with pytest.raises(ValueError, match=r"found the shape \(6,\), which is one row; x\[None\]"):
        trainer.predict(X[0])
    with pytest.raises(ValueError, match=r"expected float32 \[batch, 6\], found the shape \(4, 5\)"):
        trainer.predict(X[:4, :5])


def test_data_frames_are_data():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcdef"))
    names = pandas.Series(NAMES[LABELS])
    assert losses(classifier(), frame, names) == EXPECTED
    assert losses(classifier(), frame.astype("Float64"), pandas.Series(LABELS, dtype="Int64")) == EXPECTED
    assert losses(classifier(), frame.assign(labels=LABELS)) == EXPECTED
    np.testing.assert_array_equal(classifier().predict(frame), classifier().predict(X))
    with pytest.raises(
        ValueError, match=r"columns a, b, c, d, e, f; .*fit\(frame\[features\], frame\[target\]\)"
    ):
        losses(classifier(), frame)
    with pytest.raises(
        ValueError, match=r"expected numbers in the columns of the data frame, found str_ .* in column 'c'"
    ):
        losses(classifier(), frame.assign(c="red"), names)


def test_columns_of_data_frames_are_found_by_name(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=list("abcdef"))
    trainer = classifier()
    trainer.fit(frame.assign(labels=LABELS), epochs=1, verbose=False)
    trainer.save(tmp_path / "one.ckpt")
    other = frame[list("fdbace")]
    expected = trainer.evaluate(X, LABELS)
    resumed = classifier()
    resumed.fit(frame.assign(labels=LABELS), epochs=2, resume=tmp_path / "one.ckpt", verbose=False)
    assert resumed.columns.features == tuple("abcdef")
    for data in ((other, LABELS), (other.assign(labels=LABELS),), ([(other, LABELS)],)):
        assert trainer.evaluate(*data) == pytest.approx(expected)
    np.testing.assert_array_equal(trainer.predict(other.assign(labels=LABELS)), trainer.predict(X))
    with pytest.raises(
        ValueError,
        match=r"expected the columns .* a, b, c, d, e, f, in any order; d is missing and D is unknown",
    ):
        trainer.predict(other.rename(columns={"d": "D"}))


WRONG = "EarlyStopping: expected one of the values loss, accuracy, learning_rate, val_loss, val_accuracy as monitor"


@pytest.mark.parametrize(
    ("callback", "validation", "message"),
    [
        (EarlyStopping("val_acuracy"), 0.2, rf"{WRONG}, found 'val_acuracy' \(did you mean 'val_accuracy'"),
        (EarlyStopping(), None, "as monitor, found 'val_loss'; give fit a validation"),
        (ReduceLROnPlateau("val_los"), 0.2, r"did you mean 'val_loss'"),
        (ModelCheckpoint("unused.ckpt", "acuracy", save_best_only=True), None, "did you mean 'accuracy'"),
    ],
)
def test_a_misspelled_monitor_is_named_before_the_first_epoch(callback, validation, message):
    trainer = classifier(metrics=["accuracy"])
    with pytest.raises(ValueError, match=message):
        losses(trainer, X, LABELS, callbacks=[callback], validation=validation)
    assert trainer.step == 0


def test_a_monitor_may_be_a_value_of_another_callback():
    class Adds(Callback):
        def on_epoch_end(self, epoch, logs):
            logs["own"] = 1.0 - epoch

    assert len(losses(classifier(), X, LABELS, callbacks=[Adds(), EarlyStopping("own")])) == 2


def test_a_misspelled_parameter_to_freeze_is_named():
    message = r"frozen_params: the model has no initializer named 'W' \(did you mean 'w'\?\); it has 1: w"
    with pytest.raises(ValueError, match=message):
        classifier(frozen_params=["W"])


def test_a_model_without_a_loss_is_told_from_one_that_computes_it():
    with pytest.raises(
        ValueError, match=r"'scores' has the shape \[batch, 3\]; name a loss: 'cross_entropy'"
    ):
        Trainer(linear((6,), 3))


def test_a_model_with_a_fixed_batch_says_so_or_becomes_dynamic():
    with pytest.raises(
        ValueError,
        match=r"batches of exactly 4 rows.*found batch_size=32. Use batch_size=4 \(--batch 4 .*batch=\"dynamic\"",
    ):
        losses(Trainer(linear((6,), 3, batch=4), loss="cross_entropy"), X, LABELS)
    with pytest.raises(
        ValueError,
        match=r"found 39 rows, which leave a batch of 3 rows\. Use other data, fit\(drop_last=True\), ",
    ):
        losses(Trainer(linear((6,), 3, batch=4), loss="cross_entropy"), X[1:], LABELS[1:], batch_size=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dynamic = Trainer(linear((6,), 3, batch=4), loss="cross_entropy", batch="dynamic")
    assert losses(dynamic, X, LABELS) == EXPECTED


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float32, np.float64])
def test_a_loss_with_a_number_for_each_class_takes_classes_of_any_type(dtype):
    x, y = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32), np.arange(12) % 3
    one_hot = losses(
        Trainer(ortrain.models.mlp(4, 3, (), seed=0), "focal"), x, np.eye(3, dtype=np.float32)[y]
    )
    assert losses(Trainer(ortrain.models.mlp(4, 3, (), seed=0), "focal"), x, y.astype(dtype)) == one_hot


def of_two_outputs():
    """A model with the outputs ``logits`` and ``energy`` for four numbers."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["logits"]),
            helper.make_node("MatMul", ["x", "v"], ["energy"]),
        ],
        "two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", c])
            for name, c in (("logits", 4), ("energy", 1))
        ],
        [
            numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"),
            numpy_helper.from_array(np.ones((4, 1), np.float32), "v"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("loss", ["cross_entropy", "focal"])
def test_a_sum_of_losses_takes_classes_of_any_form(loss):
    x, y = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32), np.arange(12) % 4
    energies = np.ones((12, 1), np.float32)

    def after(classes):
        trainer = Trainer(of_two_outputs(), {"logits": loss, "energy": ("mse", 0.3)})
        return trainer.fit((x, classes, energies), 2, shuffle=False, verbose=False)["loss"]

    assert after(y) == after(y.astype(np.int32)) == after(np.eye(4, dtype=np.float32)[y])


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
def test_a_learning_rate_that_is_none_is_rejected(rate):
    with pytest.raises(ValueError, match=f"learning_rate: expected a number of 0 or more, found {rate}"):
        Trainer(ortrain.models.mlp(4, 3, ()), "cross_entropy", learning_rate=rate)


def test_a_metric_of_a_sum_of_losses_compares_an_output_with_its_target():
    trainer = Trainer(
        of_two_outputs(), {"logits": "cross_entropy", "energy": ("mse", 0.3)}, metrics=["accuracy"]
    )
    x, classes = np.eye(4, dtype=np.float32), np.arange(4)
    data = {"x": x, "logits_target": classes, "energy_target": np.full((4, 1), 3, np.float32)}
    assert trainer.evaluate(data)["accuracy"] == 1
