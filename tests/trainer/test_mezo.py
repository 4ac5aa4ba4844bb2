"""MeZO in a trainer: against its definition in double precision, and whatever else a run does."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import numpy as np
import ortrain
import pytest
from ortrain import Trainer
from ortrain.errors import OrtrainError
from ortrain.trainer import (
    EarlyStopping,
    JSONLogger,
    LambdaCallback,
    MeZO,
    ModelCheckpoint,
    Schedule,
    TerminateOnNaN,
)
from test_elastic_weights import linear, rows, values


def loss_of(flat, names, x, y):
    sizes = {"w": (5, 3), "b": (3,)}
    found, begin = {}, 0
    for name in names:
        count = int(np.prod(sizes[name]))
        found[name] = flat[begin : begin + count].reshape(sizes[name])
        begin += count
    scores = x @ found["w"] + found["b"]
    return (np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(y)), y]).mean()


def parameters_of(trainer):
    return {name: parameter.data.copy() for name, parameter in trainer.state.parameters}


def classes(count=60):
    x = rows(count=count)[0]
    return x, x[:, :3].argmax(axis=1)


def test_steps_are_those_of_the_definition():
    (x, y), rate, epsilon = rows(), 0.05, 1e-2
    trainer = Trainer(
        linear(), "cross_entropy", MeZO(epsilon), learning_rate=rate, seed=7, schedule="linear", accumulate=2
    )
    names = [name for name, _ in trainer.state.parameters]
    start = dict(zip(("w", "b"), values(linear()), strict=True))
    flat = np.concatenate([start[name].ravel() for name in names])
    history = trainer.fit((x, y), 5, batch_size=8, shuffle=False, verbose=False)
    for step in range(5):
        z = np.random.Generator(np.random.Philox(key=[7, step])).standard_normal(18, np.float32)
        derivative, losses = 0.0, []
        for part in (slice(0, 8), slice(8, 12)):  # each row counts the same
            plus, minus = (loss_of(flat + sign * epsilon * z, names, x[part], y[part]) for sign in (1, -1))
            derivative += len(x[part]) / 12 * (plus - minus) / (2 * epsilon)
            losses.append(len(x[part]) / 12 * (plus + minus) / 2)
        assert history["loss"][step] == pytest.approx(np.sum(losses), rel=1e-5)
        assert history["learning_rate"][step] == pytest.approx(rate * (1 - step / 5))
        flat = flat - rate * (1 - step / 5) * derivative * z
    found = np.concatenate([value.ravel() for value in parameters_of(trainer).values()])
    np.testing.assert_allclose(found, flat, rtol=1e-3, atol=1e-4)
    assert trainer.step == 5


def test_it_learns_by_its_default_rate_without_an_optimizer_state():
    x, y = classes()
    trainer = Trainer(linear(), "cross_entropy", "mezo", metrics=["accuracy"])
    assert trainer.learning_rate == 0.01
    assert Trainer(ortrain.models.mlp(64, 10, (64,)), "cross_entropy", "mezo").learning_rate == 10 / 4810
    trainer.learning_rate = 0.05
    history = trainer.fit((x, y), 400, batch_size=60, validation=(x, y), verbose=False)
    assert history["val_loss"][-1] < 0.5 * history["val_loss"][0]
    assert history["accuracy"][-1] == pytest.approx(history["val_accuracy"][-1], abs=0.05)
    assert trainer.summary().splitlines()[-1].count("state of the optimizer 0") <= 1


RUN = """
import sys
import numpy as np
from ortrain import Trainer
from ortrain.trainer import JSONLogger
from test_mezo import digits
folder, epochs, resume = sys.argv[1], int(sys.argv[2]), sys.argv[3] or None
trainer = Trainer(folder, metrics=["accuracy"], schedule="cosine", seed=3)
trainer.fit(digits(), epochs, batch_size=50, validation=0.25, resume=resume, verbose=False,
            callbacks=[JSONLogger(f"{folder}/log.jsonl")])
"""


def digits(count=400):
    """Rows like those of handwritten digits: numbers from 0 to 1 around a picture of each class."""
    rng = np.random.default_rng(4)
    pictures, labels = rng.random((10, 64)), rng.integers(0, 10, count)
    return (pictures[labels] + rng.normal(0, 0.3, (count, 64))).astype(np.float32), labels


def test_a_resumed_run_has_the_same_bits(tmp_path):
    settings = {"metrics": ["accuracy"], "schedule": "cosine", "seed": 3}
    options = {"batch_size": 50, "validation": 0.25, "verbose": False}
    model = ortrain.models.mlp(64, 10, (16,), seed=2)
    whole = Trainer(model, "cross_entropy", MeZO(2e-3), artifact_directory=tmp_path / "whole", **settings)
    history = whole.fit(digits(), 4, **options)
    first = Trainer(model, "cross_entropy", MeZO(2e-3), artifact_directory=tmp_path / "first", **settings)
    # The run is to have 4 epochs, and ends in the middle of the third one.
    stop = LambdaCallback(
        on_train_batch_end=lambda batch, logs: setattr(first, "stop_training", first.step == 14)
    )
    first.fit(digits(), 4, callbacks=[stop], **options)
    assert (first.epoch, first.step) == (2, 14)
    first.save(tmp_path / "middle.ckpt")
    again = Trainer(tmp_path / "first", **settings)
    assert again.fit(digits(), 4, resume=tmp_path / "middle.ckpt", **options) == history
    for name, value in parameters_of(whole).items():
        assert value.tobytes() == parameters_of(again)[name].tobytes(), name


def test_a_run_that_another_process_resumes_has_the_same_bits(tmp_path):
    model = ortrain.models.mlp(64, 10, (16,), seed=2)
    found = {}
    for name in ("whole", "parts"):
        trainer = Trainer(model, "cross_entropy", "mezo", artifact_directory=tmp_path / name, seed=3)
        save = ModelCheckpoint(tmp_path / name / "{epoch}.ckpt")
        settings = {"metrics": ["accuracy"], "schedule": "cosine", "seed": 3}
        trainer = Trainer(tmp_path / name, callbacks=[save], **settings)
        trainer.fit(digits(), 4, batch_size=50, validation=0.25, verbose=False)
        if name == "parts":
            command = [sys.executable, "-c", RUN, tmp_path / name, "4", tmp_path / name / "2.ckpt"]
            save = "trainer.save(f'{folder}/4.ckpt')"
            command[2] += save
            subprocess.run(
                command, check=True, cwd=pathlib.Path(__file__).parent, timeout=120, capture_output=True
            )
            log = [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
            assert [line["epoch"] for line in log if line["event"] == "epoch"] == [2, 3]
        last = Trainer(tmp_path / name, checkpoint=tmp_path / name / "4.ckpt")
        found[name] = parameters_of(last), last.saved_run["history"]
    assert found["whole"][1] == found["parts"][1]
    for name, value in found["whole"][0].items():
        assert value.tobytes() == found["parts"][0][name].tobytes(), name


def test_callbacks_logs_schedules_groups_and_averages_work(tmp_path):
    x, y = digits()
    trainer = Trainer(
        ortrain.models.mlp(64, 10, (16,), seed=2),
        "cross_entropy",
        "mezo",
        metrics=["accuracy"],
        schedule=Schedule("on_plateau", patience=0, threshold=0.5),
        ema=0.9,
        weight_decay=0.1,
        clip=100.0,
        callbacks=[EarlyStopping(patience=2, min_delta=10.0), JSONLogger(tmp_path / "log.jsonl")],
    )
    history = trainer.fit(x, y, 9, batch_size=50, validation=0.25, verbose=False)
    assert len(history["loss"]) == 3
    assert "val_loss has not improved" in trainer.stop_reason
    assert history["learning_rate"][-1] < history["learning_rate"][0]
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    begin = next(line for line in lines if line["event"] == "begin")
    assert begin["settings"]["mezo"] == "epsilon 0.001"
    layers = next(line for line in lines if line["event"] == "layers")
    assert layers["gradient_norm"] > 0
    profile = next(line for line in lines if line["event"] == "profile")
    assert profile["steps"] == 6  # two passes for each of the 3 steps before the validation
    assert any(row["name"].startswith(("Gemm", "MatMul")) for row in profile["operators"])


def test_an_average_of_the_weights_is_not_what_steps_look_at():
    found = []
    for ema in (None, 0.9):
        trainer = Trainer(linear(), "cross_entropy", "mezo", ema=ema, learning_rate=0.05)
        x, y = classes()
        trainer.fit(x, y, 20, batch_size=60, verbose=False)
        found.append((parameters_of(trainer), trainer.evaluate(x, y, batch_size=60)["loss"]))
    for name, value in found[0][0].items():
        assert value.tobytes() == found[1][0][name].tobytes(), name
    assert found[0][1] < found[1][1]  # that of the average, which lags behind


def test_a_group_without_a_rate_keeps_its_bits():
    from ortrain.onnxblock.optim import ParamGroup
    from ortrain.trainer import FreezeGroups

    trainer = Trainer(linear(), "cross_entropy", "mezo", param_groups=[ParamGroup("bias", ["b"])])
    before = parameters_of(trainer)
    trainer.fit(rows(), 3, callbacks=[FreezeGroups({"bias": range(9)})], verbose=False)
    after = parameters_of(trainer)
    assert after["b"].tobytes() == before["b"].tobytes()
    assert np.abs(after["w"] - before["w"]).max() > 1e-4


def test_a_search_for_a_rate_takes_its_steps():
    x, y = classes()
    trainer = Trainer(linear(), "cross_entropy", "mezo")
    before = parameters_of(trainer)
    found = trainer.find_learning_rate((x, y), lowest=1e-4, highest=100.0)
    assert 1e-3 < found.suggestion < 10
    for name, value in before.items():
        np.testing.assert_array_equal(parameters_of(trainer)[name], value)


def test_a_loss_that_is_not_finite_leaves_the_parameters():
    x, y = rows()
    x[3, 2] = np.inf
    trainer = Trainer(linear(), "cross_entropy", "mezo")
    before = parameters_of(trainer)
    with pytest.raises(OrtrainError, match="has an infinity in row 3"):
        trainer.fit((x, y), verbose=False)
    trainer.fit((x, y), callbacks=[TerminateOnNaN()], verbose=False)
    assert "was nan" in trainer.stop_reason or "was inf" in trainer.stop_reason
    for name, value in before.items():
        np.testing.assert_allclose(parameters_of(trainer)[name], value, atol=1e-6)
    trainer.fit(rows(), verbose=False)  # the trainer can still be used
    assert trainer.step == 1


def test_a_label_that_is_not_a_class_is_named_and_leaves_the_parameters():
    x, y = rows()
    trainer = Trainer(linear(), "cross_entropy", "mezo")
    before = parameters_of(trainer)
    with pytest.raises(OrtrainError, match="expected numbers of classes from 0 to 2, found 7"):
        trainer.fit(x, np.where(np.arange(len(y)) == 4, 7, y), verbose=False)
    for name, value in before.items():
        np.testing.assert_allclose(parameters_of(trainer)[name], value, atol=1e-6)


def test_what_does_not_fit_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="MeZO: expected an epsilon above 0, found nan"):
        MeZO(epsilon=float("nan"))
    Trainer(linear(), "cross_entropy", artifact_directory=tmp_path / "adamw")
    with pytest.raises(ValueError, match=r"expected artifacts that were made for MeZO\(epsilon=0.001\)"):
        Trainer(tmp_path / "adamw", optimizer=MeZO())
    Trainer(linear(), "cross_entropy", MeZO(0.01), artifact_directory=tmp_path / "mezo")
    with pytest.raises(ValueError, match=r"for MeZO\(epsilon=0.01\)"):
        Trainer(tmp_path / "mezo", optimizer=MeZO())
    Trainer(tmp_path / "mezo", optimizer="mezo")
    (tmp_path / "mezo" / "eval_model.onnx").unlink()
    with pytest.raises(ValueError, match=r"MeZO: expected an eval model, found no eval_model\.onnx"):
        Trainer(tmp_path / "mezo")
