"""Features of a frozen body are computed once for each sample, and nothing else changes, not a bit."""

from __future__ import annotations

import errno
import io
import json
import logging
import pathlib
from typing import Any

import numpy as np
import onnx
import pytest
from ortrain.artifacts import Head, generate_artifacts
from ortrain.trainer import FeatureCache, JSONLogger, LambdaCallback, Trainer
from ortrain.trainer import cached_module as cached
from ortrain.trainer.feature_store import FeatureStore

MODELS = pathlib.Path(__file__).parents[1] / "models" / "data"
RESNET = MODELS / "resnet" / "torchscript_20.onnx"
Array = np.ndarray[Any, Any]


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each batch whose features were computed."""
    rows: list[int] = []
    compute = cached._Stage.compute

    def counting(stage: Any, batch: Any) -> Any:
        rows.append(len(batch[stage.inputs[0]]))
        return compute(stage, batch)

    monkeypatch.setattr(cached._Stage, "compute", counting)
    return rows


def folder_of(path: pathlib.Path, folder: pathlib.Path, **settings: Any) -> pathlib.Path:
    generate_artifacts(path, head=Head(classes=4, **settings), artifact_directory=folder)
    return folder


def data_of(path: pathlib.Path, count: int = 44) -> tuple[Array, Array]:
    shape = [d.dim_value or 16 for d in onnx.load(path).graph.input[0].type.tensor_type.shape.dim][1:]
    return np.random.default_rng(5).normal(size=(count, *shape)).astype(np.float32), np.arange(count) % 4


def fitted(folder: pathlib.Path, data: Any, cache: FeatureCache | bool, **settings: Any) -> Trainer:
    trainer = Trainer(folder, learning_rate=1e-2, metrics=["accuracy"], threads=2, feature_cache=cache)
    trainer.fit(data, epochs=4, batch_size=16, verbose=False, **settings)
    return trainer


def values_of(trainer: Trainer, data: tuple[Array, Array]) -> list[Any]:
    parameters = [(name, parameter.data.tobytes()) for name, parameter in trainer.state.parameters]
    predicted = trainer.predict(data[0])
    return [trainer.history, parameters, trainer.evaluate(data), [np.asarray(p).tobytes() for p in predicted]]


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("resnet/torchscript_20.onnx", {}),
        ("resnet/dynamo_plain_18.onnx", {"train": "last:2"}),
        ("mobilenet_v2_dropout/torchscript_18.onnx", {}),  # Dropout in the head
        ("vit/dynamo_20.onnx", {}),
    ],
)
def test_a_run_has_the_bits_of_one_without(
    model: str, settings: dict[str, Any], tmp_path: pathlib.Path, computed: list[int]
) -> None:
    path = MODELS / model
    folder, data = folder_of(path, tmp_path, **settings), data_of(path)
    without = values_of(fitted(folder, data, False, validation=0.25), data)
    assert not computed
    assert values_of(fitted(folder, data, True, validation=0.25), data) == without
    assert computed


def test_the_body_runs_in_the_first_epoch_alone(tmp_path: pathlib.Path, computed: list[int]) -> None:
    folder, data = folder_of(RESNET, tmp_path), data_of(RESNET)
    counts: list[int] = []
    epochs = LambdaCallback(on_epoch_end=lambda epoch, logs: counts.append(len(computed)))
    fitted(folder, data, True, callbacks=[epochs])
    assert counts[1:] == counts[:1] * 3


def test_features_in_a_file_serve_later_runs(tmp_path: pathlib.Path, computed: list[int]) -> None:
    folder, data = folder_of(RESNET, tmp_path / "artifacts"), data_of(RESNET)
    cache = FeatureCache(folder=tmp_path / "features")
    first = values_of(fitted(folder, data, cache), data)
    check = 6  # batches that are computed to compare bits, for training and for eval steps
    assert len(computed) > check
    computed.clear()
    assert values_of(fitted(folder, data, cache), data) == first
    assert len(computed) <= check
    # Another sample: its batch is computed in the first epoch, and no other.
    computed.clear()
    changed = data[0].copy()
    changed[7] += 1
    fitted(folder, (changed, data[1]), cache)
    assert len(computed) <= check + 1
    # A damaged record is computed again.
    file = max((tmp_path / "features").iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[-8] ^= 1
    content += b"torn"
    file.write_bytes(bytes(content))
    assert values_of(fitted(folder, data, cache), data) == first


def test_the_limit_bounds_what_is_kept(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, data = folder_of(RESNET, tmp_path / "artifacts"), data_of(RESNET)
    limit = 10 * 20 * 4  # ten samples with 20 features
    without = values_of(fitted(folder, data, False), data)
    cache = FeatureCache(folder=tmp_path / "features", limit=limit)
    assert values_of(fitted(folder, data, cache), data) == without
    assert "has room for 10 samples" in caplog.text
    assert all(file.stat().st_size < 2 * limit for file in (tmp_path / "features").iterdir())


def test_a_full_disk_does_not_end_a_run(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, data = folder_of(RESNET, tmp_path / "artifacts"), data_of(RESNET)
    without = values_of(fitted(folder, data, False), data)
    cache = FeatureCache(folder=tmp_path / "features")

    class Full(io.FileIO):
        def write(self, content: Any) -> int:
            if self.tell() + len(content) <= 700:
                return super().write(content)
            super().write(content[:5])
            raise OSError(errno.ENOSPC, "No space left on device")

    opened = FeatureStore.open

    def open_on_a_full_disk(store: FeatureStore, features: Any) -> None:
        opened(store, features)
        assert store._file is not None
        store._file = Full(store._file.name, "a+")

    with monkeypatch.context() as patched:
        patched.setattr(FeatureStore, "open", open_on_a_full_disk)
        assert values_of(fitted(folder, data, cache), data) == without
    assert "cannot grow (No space left on device) and has room for 6 samples" in caplog.text
    assert values_of(fitted(folder, data, cache), data) == without


def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, data = folder_of(RESNET, tmp_path / "artifacts"), data_of(RESNET)
    (tmp_path / "file").write_bytes(b"")
    found = values_of(fitted(folder, data, FeatureCache(folder=tmp_path / "file" / "features")), data)
    assert f"not kept: cannot create the folder '{tmp_path / 'file' / 'features'}'" in caplog.text
    assert found == values_of(fitted(folder, data, False), data)


class Augmented:
    """A table like those of Hugging Face whose rows are other ones each time."""

    def __init__(self, images: Array, labels: Array) -> None:
        self.images, self.labels = images, labels
        self.rng = np.random.default_rng(0)

    def with_format(self, kind: str) -> Augmented:
        return self

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: list[int]) -> dict[str, Array]:
        noise = self.rng.normal(size=self.images[rows].shape).astype(np.float32)
        return {"images": self.images[rows] + noise, "labels": self.labels[rows]}


def test_augmentation_turns_it_off_and_is_named(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ortrain")
    folder, (images, labels) = folder_of(RESNET, tmp_path), data_of(RESNET)
    trainer = fitted(folder, Augmented(images, labels), True)
    assert "44 of 44 samples of epoch 2 were not in the epochs before, as with augmentation" in caplog.text
    assert trainer.history["loss"][-1] < trainer.history["loss"][0]

    def batches(epoch: int) -> list[tuple[Array, Array]]:
        return [(images[::-1] if epoch % 2 else images, labels)]

    fitted(folder, batches, True)
    assert "the data are batches, which may differ in every epoch, as with augmentation" in caplog.text


def test_a_run_is_resumed_with_the_same_bits(tmp_path: pathlib.Path) -> None:
    folder, data = folder_of(RESNET, tmp_path / "artifacts"), data_of(RESNET)
    saved = tmp_path / "saved.ckpt"
    trainer = Trainer(folder, learning_rate=1e-2, metrics=["accuracy"], threads=2)
    trainer.fit(data, epochs=2, batch_size=16, verbose=False)
    trainer.save(saved)
    whole = values_of(fitted(folder, data, False), data)
    for cache in (True, False):
        assert values_of(fitted(folder, data, cache, resume=saved), data) == whole


def test_the_profile_of_a_log_survives_that_features_are_no_longer_used(tmp_path: pathlib.Path) -> None:
    folder, (images, labels) = folder_of(RESNET, tmp_path / "artifacts"), data_of(RESNET)
    # An epoch has 3 steps, the profile begins in epoch 2, and the whole model takes over in epoch 3.
    log = JSONLogger(tmp_path / "log.jsonl")
    fitted(folder, Augmented(images, labels), True, callbacks=[log])
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    (profile,) = (line for line in lines if line["event"] == "profile")
    assert profile["steps"] == 5
    assert "Conv" in {row["name"] for row in profile["operators"]}  # of the whole model
    assert lines[-1]["status"] == "complete"


@pytest.mark.parametrize("batches", [0, 2])
def test_a_resumed_run_uses_features(
    batches: int, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, computed: list[int]
) -> None:
    caplog.set_level(logging.INFO, "ortrain")
    folder, data = folder_of(RESNET, tmp_path / "artifacts"), data_of(RESNET)
    saved, trainer = tmp_path / "saved.ckpt", Trainer(folder, learning_rate=1e-2, threads=2)

    def save(batch: int, logs: Any) -> None:
        if trainer.epoch == 1 and batch == batches - 1:
            trainer.save(saved)

    stop = LambdaCallback(on_train_batch_end=save)
    trainer.fit(data, epochs=1 if batches == 0 else 2, batch_size=16, verbose=False, callbacks=[stop])
    if batches == 0:
        trainer.save(saved)
    caplog.clear()
    computed.clear()
    resumed = Trainer(folder, learning_rate=1e-2, threads=2)
    resumed.fit(data, epochs=5, batch_size=16, verbose=False, resume=saved)
    assert "were not in the epochs before" not in caplog.text
    assert "features: stored for 44 samples" in caplog.text
    expected = Trainer(folder, learning_rate=1e-2, threads=2, feature_cache=False)
    expected.fit(data, epochs=5, batch_size=16, verbose=False, resume=saved)
    assert resumed.history == expected.history


def test_a_run_exports_the_whole_model_on_the_way(tmp_path: pathlib.Path) -> None:
    folder, data = folder_of(RESNET, tmp_path), data_of(RESNET)
    trainer = Trainer(folder, learning_rate=1e-2, threads=2)
    exports = LambdaCallback(on_epoch_end=lambda epoch, logs: trainer.export(tmp_path / f"{epoch}.onnx"))
    trainer.fit(data, epochs=2, batch_size=16, verbose=False, callbacks=[exports])
    trainer.export(tmp_path / "after.onnx")
    assert (tmp_path / "1.onnx").read_bytes() == (tmp_path / "after.onnx").read_bytes()


def test_a_module_that_the_program_holds_stays(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ortrain")
    folder, data = folder_of(RESNET, tmp_path), data_of(RESNET)
    trainer = Trainer(folder, threads=2)
    module = trainer.module
    trainer.fit(data, epochs=2, verbose=False)
    assert trainer.module is module
    assert "because the program holds the trainer's module" in caplog.text


def test_little_that_is_frozen_is_not_kept(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ortrain")
    folder, data = folder_of(RESNET, tmp_path, train="last:6"), data_of(RESNET)
    fitted(folder, data, True)
    assert "layers depend on nothing that is trained" in caplog.text
