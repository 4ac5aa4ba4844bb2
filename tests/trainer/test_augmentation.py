"""Augmented pictures: what each operation does, and runs that use them."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import ortrain
import pytest
from ortrain import Trainer, models
from ortrain.artifacts import Head
from ortrain.preprocessing.augmentation import OPERATIONS, augmentation_of
from ortrain.trainer import LambdaCallback, ModelCheckpoint

PICTURES = np.random.default_rng(3).normal(size=(40, 3, 12, 10)).astype(np.float32)


def changed(names, pictures=PICTURES):
    return augmentation_of(names).pictures(pictures, np.random.default_rng(1))


def digits(count=200):
    with np.load(Path(ortrain.__file__).parent / "demo_data/digits.npz") as file:
        pixels, labels = file["pixels"][:count], file["labels"][:count]
    return pixels[:, None].astype(np.float32) / 16, labels.astype(np.int64)


def network():
    return models.cnn((1, 8, 8), 10)


def test_flipped_pictures_are_mirrored():
    np.testing.assert_array_equal(changed("flip=1"), PICTURES[..., ::-1])
    mirrored = (changed("flip") == PICTURES[..., ::-1]).all(axis=(1, 2, 3))
    assert 10 < mirrored.sum() < 30
    np.testing.assert_array_equal(changed("flip")[~mirrored], PICTURES[~mirrored])


def test_cropped_pictures_are_parts_of_pictures_with_repeated_edges():
    padded = np.pad(PICTURES, ((0, 0), (0, 0), (2, 2), (2, 2)), mode="edge")
    places = set()
    for found, large in zip(changed("crop=0.2"), padded, strict=True):
        fits = [
            (y, x) for y in range(5) for x in range(5) if (large[:, y : y + 12, x : x + 10] == found).all()
        ]
        assert len(fits) == 1
        places.update(fits)
    assert len(places) > 15


def test_a_zoomed_picture_is_a_part_of_it():
    rows, columns = np.mgrid[0:12, 0:10].astype(np.float32)
    ramp = np.stack([rows, columns])[None].repeat(40, 0)
    found = changed("zoom=0.5", ramp)
    steps = np.diff(found[:, 0, 2:-2], axis=1)[..., 0], np.diff(found[:, 1, :, 2:-2], axis=2)[:, 0]
    for each in steps:  # a ramp that is enlarged is a ramp that is less steep
        np.testing.assert_allclose(each, each[:, :1].repeat(each.shape[1], 1), atol=1e-4)
    area = steps[0][:, 0] * steps[1][:, 0]
    assert area.min() >= 0.49
    assert area.max() <= 1.0001
    assert area.std() > 0.05


def test_a_turned_picture_has_its_edges_in_the_corners():
    rows, columns = np.mgrid[-6:6, -6:6].astype(np.float32) + 0.5
    ramp = np.stack([rows, columns])[None].repeat(30, 0)
    found = changed("rotate=20", ramp)
    slopes = np.diff(found[:, :, 3:9, 3:9], axis=3)[:, :, 0, 0]
    assert np.hypot(slopes[:, 0], slopes[:, 1]) == pytest.approx(np.ones(30), abs=1e-3)
    assert np.degrees(np.arcsin(np.abs(slopes[:, 0]))).max() == pytest.approx(20, abs=3)
    np.testing.assert_allclose(changed("rotate=180", np.full((4, 1, 9, 5), 7.0, np.float32)), 7)


def test_colors_change_and_not_the_order_of_brightness():
    gray = np.repeat(PICTURES[:, :1], 3, axis=1)
    found = changed("color=0.5", gray)
    np.testing.assert_allclose(found[:, 0], found[:, 1], rtol=1e-4, atol=1e-5)  # gray has no color
    order = gray[:, 0].reshape(40, -1).argsort(axis=1)
    assert (np.diff(np.take_along_axis(found[:, 0].reshape(40, -1), order, 1), axis=1) >= 0).all()
    assert not np.allclose(found, gray)


def test_a_hole_has_the_mean_of_the_picture():
    found = changed("cutout=0.5")
    hole = (found == PICTURES.mean(axis=(2, 3), keepdims=True)).all(axis=1)
    np.testing.assert_array_equal(found.transpose(0, 2, 3, 1)[~hole], PICTURES.transpose(0, 2, 3, 1)[~hole])
    for each in hole:
        rows, columns = np.flatnonzero(each.any(axis=1)), np.flatnonzero(each.any(axis=0))
        assert each.sum() == len(rows) * len(columns)  # a box
        assert len(rows) <= 5
        assert len(columns) <= 5


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_targets_are_mixed_as_the_pictures_are(name):
    pictures = np.arange(40, dtype=np.float32)[:, None, None, None] + np.zeros((1, 3, 12, 10), np.float32)
    found, target = augmentation_of(f"{name}=1").mixed(
        pictures, np.eye(40, dtype=np.float32), np.random.default_rng(2)
    )
    # A picture of row i is the number i everywhere, so the mean of the pixels is that of the targets.
    np.testing.assert_allclose(found.mean(axis=(1, 2, 3)), target @ np.arange(40), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(target.sum(axis=1), 1, rtol=1e-6)
    assert ((target > 0).sum(axis=1) <= 2).all()
    assert ((target > 0.01).sum(axis=1) == 2).sum() > 20


def test_names_settings_and_functions():
    assert str(augmentation_of("flip, crop=0.2")) == "crop=0.2,flip=0.5"
    assert str(augmentation_of({"mixup": 0.4})) == "mixup=0.4"

    def darker(pictures, rng):
        return pictures - rng.random()

    assert str(augmentation_of(["flip", darker])) == "flip=0.5,darker"
    rng = np.random.default_rng(1)
    np.testing.assert_array_equal(augmentation_of(darker).pictures(PICTURES, rng), changed(darker))
    assert augmentation_of(None) is augmentation_of("")
    with pytest.raises(ValueError, match=r"there is no 'colour' \(did you mean 'color'\?\)"):
        augmentation_of("flip,colour")
    with pytest.raises(ValueError, match="flip: expected a number above 0 and up to 1"):
        augmentation_of("flip=2")
    with pytest.raises(
        ValueError, match=r"expected pictures of the shape \(40, 3, 12, 10\) from .*, found \(40,"
    ):
        changed(lambda pictures, rng: pictures[:, 0])


@pytest.mark.parametrize("augment", [",".join(OPERATIONS), "crop"])
def test_a_resumed_run_sees_the_same_pictures(tmp_path, augment):
    settings = {"loss": "cross_entropy", "augment": augment, "metrics": ["accuracy"], "seed": 5}

    def trained(folder, stop=0, **options):
        trainer = Trainer(network(), **settings, artifact_directory=folder)
        callbacks = [ModelCheckpoint(folder / "{step}.ckpt", save_freq=4)]
        if stop:
            callbacks.append(
                LambdaCallback(
                    on_train_batch_end=lambda *_: setattr(trainer, "stop_training", trainer.step == stop)
                )
            )
        history = trainer.fit(digits(), 3, validation=0.2, callbacks=callbacks, verbose=False, **options)
        return {name: p.data.tobytes() for name, p in trainer.state.parameters}, history

    whole = trained(tmp_path / "whole")
    trained(tmp_path / "part", stop=8)  # in the second epoch, which has 5 steps
    assert trained(tmp_path / "part", resume=tmp_path / "part/8.ckpt") == whole
    settings["augment"] = "flip"
    with pytest.raises(ValueError, match=r"resume: expected augment crop=0.125.*found flip=0.5"):
        trained(tmp_path / "part", resume=tmp_path / "part/8.ckpt")


def test_data_that_are_evaluated_do_not_change(tmp_path):
    plain = Trainer(network(), loss="soft_cross_entropy", metrics=["accuracy"], artifact_directory=tmp_path)
    x, y = digits()
    augmented = Trainer(tmp_path, metrics=["accuracy"], augment="crop,mixup")
    assert augmented.evaluate(x, y) == plain.evaluate(x, y)
    np.testing.assert_array_equal(augmented.predict(x), plain.predict(x))
    first = plain.fit(x, y, 2, validation=(x, y), verbose=False)
    second = augmented.fit(x, y, 2, validation=(x, y), verbose=False)
    assert first["loss"] != second["loss"]


@pytest.mark.thorough
def test_few_digits_are_read_better_with_augmentation():
    x, y = digits(1797)
    accuracy = {}
    for augment in (None, "zoom=0.8"):
        found = []
        for seed in range(4):
            trainer = Trainer(
                network(),
                loss="cross_entropy",
                learning_rate=3e-3,
                metrics=["accuracy"],
                augment=augment,
                seed=seed,
            )
            trainer.fit(x[:300], y[:300], 40, verbose=False)
            found.append(trainer.evaluate(x[1000:], y[1000:])["accuracy"])
        accuracy[augment] = np.mean(found)
    assert accuracy["zoom=0.8"] > accuracy[None] + 0.01


def test_classes_may_have_names_where_pictures_are_mixed():
    x, y = digits()
    names = np.array([f"digit {label}" for label in y])
    trainer = Trainer(network(), loss="cross_entropy", metrics=["accuracy"], augment="cutmix")
    trainer.fit(x, names, 1, verbose=False)
    assert trainer.classes == [f"digit {label}" for label in range(10)]
    assert trainer.evaluate(x, names) == trainer.evaluate(x, y)


def test_what_cannot_be_augmented_is_refused(tmp_path):
    Trainer(network(), loss="cross_entropy", artifact_directory=tmp_path)
    with pytest.raises(
        ValueError, match=r"mixup needs a loss that takes a probability for each class.*soft_cross_ent"
    ):
        Trainer(tmp_path, augment="flip,mixup")
    with pytest.raises(ValueError, match=r"expected one input of pictures.*found x float32 \[batch, 8\]"):
        Trainer(models.mlp(8, 3), loss="cross_entropy", augment="crop")
    with pytest.raises(ValueError, match="mixup: expected a trainer without sample_weight"):
        Trainer(network(), loss="cross_entropy", augment="mixup", sample_weight=True)


def test_the_features_of_a_frozen_body_are_not_kept(tmp_path, caplog):
    body = Trainer(models.resnet((1, 8, 8), 10), loss="cross_entropy")
    body.export(tmp_path / "model.onnx")
    with caplog.at_level(logging.WARNING, logger="ortrain.trainer"):
        for augment in (None, "crop"):
            trainer = Trainer(tmp_path / "model.onnx", head=Head(10), augment=augment)
            trainer.fit(*digits(64), 2, verbose=False)
            assert ("augmentation changes the pictures" in caplog.text) == (augment is not None)
