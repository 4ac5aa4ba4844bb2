"""Callbacks: the moments at which they are called, and what the given ones do."""

from __future__ import annotations

import csv
import io
import json
import pathlib
import re
import sys
import time
import types
import xml.etree.ElementTree as ET

import numpy as np
import onnx
import pytest
import small
from ortrain import Trainer
from ortrain.api import CheckpointState
from ortrain.trainer import (
    Callback,
    CSVLogger,
    EarlyStopping,
    JSONLogger,
    LambdaCallback,
    LearningRateMonitor,
    LearningRateScheduler,
    MLflowLogger,
    ModelCheckpoint,
    ProgbarLogger,
    ReduceLROnPlateau,
    TensorBoard,
    TerminateOnNaN,
    WandbLogger,
)
from system import fcntl

X, Y = small.rows(64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small.make_artifacts(tmp_path_factory.mktemp("artifacts"))


def fit(folder, *callbacks, epochs=3, **options):
    trainer = Trainer(folder, learning_rate=1e-2)
    trainer.fit((X, Y), epochs, callbacks=callbacks, verbose=False, **options)
    return trainer


class Scripted(Callback):
    """Replaces a value of each epoch."""

    def __init__(self, name, values):
        self.name, self.values = name, values

    def on_epoch_end(self, epoch, logs):
        logs[self.name] = self.values[epoch]


def test_the_moments_are_those_of_keras(folder):
    seen = []

    def record(name):
        return lambda *arguments: seen.append((name, *arguments[:-1]))

    names = [name for name in dir(Callback) if name.startswith("on_")]
    fit(folder, LambdaCallback(**{name: record(name) for name in names}), epochs=2)
    steps = []
    for batch in range(2):
        steps += [("on_train_batch_begin", batch), ("on_train_batch_end", batch)]
    epochs = []
    for epoch in range(2):
        epochs += [("on_epoch_begin", epoch), *steps, ("on_epoch_end", epoch)]
    assert seen == [("on_train_begin",), *epochs, ("on_train_end",)]
    with pytest.raises(ValueError, match="no moment 'on_lunch'"):
        LambdaCallback(on_lunch=print)


def test_early_stopping_counts_epochs_and_restores_the_best(folder):
    weights = []
    values = Scripted("val_loss", [3.0, 1.0, 2.0, 1.0, 0.5])
    keep = LambdaCallback(
        on_epoch_end=lambda epoch, logs: weights.append(trainer.state.parameters["w1"].data.copy())
    )
    trainer = Trainer(folder, callbacks=[values, keep])
    stop = EarlyStopping(patience=2, restore_best_weights=True)
    trainer.fit((X, Y), 5, callbacks=[stop], verbose=False)
    assert stop.stopped_epoch == 3
    assert len(weights) == 4
    np.testing.assert_array_equal(trainer.state.parameters["w1"].data, weights[1])
    assert not np.array_equal(weights[1], weights[3])


def test_a_value_that_is_not_there_is_named(folder):
    with pytest.raises(
        ValueError, match="values loss, learning_rate as monitor, found 'val_loss'; give fit a valid"
    ):
        fit(folder, EarlyStopping())


def test_the_best_checkpoints_are_kept(folder, tmp_path):
    values = Scripted("val_loss", [3.0, 1.0, 2.0, 4.0])
    best = ModelCheckpoint(tmp_path / "best.ckpt", save_best_only=True)
    fit(folder, ModelCheckpoint(tmp_path / "{epoch}-{val_loss:.1f}.ckpt", keep=2), best, values, epochs=4)
    # The best one, and the newest, from which the run could go on.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2-1.0.ckpt", "4-4.0.ckpt", "best.ckpt"]
    kept, other = (
        CheckpointState.load_checkpoint(tmp_path / name).parameters["w1"].data
        for name in ("best.ckpt", "2-1.0.ckpt")
    )
    np.testing.assert_array_equal(kept, other)
    with pytest.raises(ValueError, match="names 'accuracy'; known are epoch, step, loss"):
        fit(folder, ModelCheckpoint(tmp_path / "{accuracy}.ckpt"))


def test_checkpoints_of_an_earlier_run_are_named(folder, tmp_path):
    """They stay beside those of the new run, whose names do not tell which run saved them."""
    pattern = tmp_path / "a-{epoch}.ckpt"
    fit(folder, ModelCheckpoint(pattern), epochs=4)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "a-best.ckpt").write_bytes(b"the user's")
    said = r"has 4 checkpoints of another run \(a-1.ckpt, a-2.ckpt, a-3.ckpt, ...\); this run replaces checkpoints of the same"
    with pytest.warns(UserWarning, match=said):
        fit(folder, ModelCheckpoint(pattern), epochs=1)
    assert (tmp_path / "a-1.ckpt").read_bytes() != before["a-1.ckpt"]
    assert (tmp_path / "a-4.ckpt").read_bytes() == before["a-4.ckpt"]
    trainer, save = Trainer(folder), ModelCheckpoint(tmp_path / "a-{epoch}.ckpt", keep=2)
    with pytest.warns(UserWarning, match=r"has 1 checkpoint of another run \(a-4.ckpt\)"):
        trainer.fit((X, Y), 4, callbacks=[save], resume=tmp_path / "a-3.ckpt", verbose=False)


@pytest.mark.parametrize(
    ("pattern", "first"),
    [
        ("{{a}}/{epoch}.ckpt", "1.ckpt"),
        ("}}{{x/{{{epoch}}}.ckpt", "{1}.ckpt"),
        ("x-{epoch}/{{a}}/s{step}.ckpt", "x-1/{a}/s2.ckpt"),
    ],
)
def test_checkpoints_of_an_earlier_run_are_found_in_folders_with_braces(folder, tmp_path, pattern, first):
    """In folders whose name has braces or fields; so are the temporary files of a killed process."""
    pattern = tmp_path / pattern
    fit(folder, ModelCheckpoint(pattern), epochs=3)
    (saved,) = [path for path in tmp_path.rglob("*.ckpt") if path.as_posix().endswith(first)]
    (saved.with_name(f"{saved.name}.tmp-99-0")).write_bytes(b"half")
    with pytest.warns(UserWarning, match=r"has 3 checkpoints of another run") as warned:
        fit(folder, ModelCheckpoint(pattern), epochs=2)
    assert f"({pathlib.Path(first)}, " in str(warned[0].message)
    assert not list(tmp_path.rglob("*.tmp-*"))
    with pytest.warns(UserWarning, match=r"has 2 checkpoints of another run"):
        Trainer(folder).fit((X, Y), 2, callbacks=[ModelCheckpoint(pattern)], resume=saved, verbose=False)


def test_what_a_killed_process_left_of_its_checkpoints_is_removed(folder, tmp_path):
    """If the process is gone and the name is that of a temporary file of a checkpoint; everything else stays."""
    abandoned = [tmp_path / f"a-{name}.tmp-99-0" for name in ("3.ckpt", "12.ckpt", "12.ckpt.data")]
    running = tmp_path / "a-7.ckpt.tmp-99-1"
    others = [
        tmp_path / name
        for name in ("a-best.ckpt.tmp-99-0", "b-3.ckpt.tmp-99-0", "a-3.ckpt.tmp-99-0.txt", "a-3.ckpt.tmp-99")
    ]
    for path in (*abandoned, running, *others):
        path.write_bytes(b"half")
    with running.open() as used:
        fcntl.flock(used, fcntl.LOCK_EX)  # as a process that is still writing holds it
        fit(folder, ModelCheckpoint(tmp_path / "a-{epoch}.ckpt"), epochs=1)
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "a-1.ckpt", running, *others])
    fit(folder, ModelCheckpoint(tmp_path / "new" / "a-{epoch}.ckpt"), epochs=1)  # in a new folder


def test_a_resumed_run_and_one_with_a_single_file_are_silent(folder, tmp_path, recwarn):
    for name in ("{epoch}.ckpt", "one.ckpt"):
        fit(folder, ModelCheckpoint(tmp_path / name), epochs=2)
    save = ModelCheckpoint(tmp_path / "{epoch}.ckpt")
    Trainer(folder).fit((X, Y), 3, callbacks=[save], resume=tmp_path / "2.ckpt", verbose=False)
    fit(folder, ModelCheckpoint(tmp_path / "one.ckpt"), epochs=1)
    assert not [str(warning.message) for warning in recwarn if "ModelCheckpoint" in str(warning.message)]


def test_the_learning_rate_is_lowered_and_recorded(folder):
    rates = LearningRateMonitor()
    plateau = ReduceLROnPlateau(factor=0.5, patience=1, min_lr=2e-3)
    trainer = fit(folder, rates, Scripted("val_loss", [1.0, 1.0, 1.0, 1.0, 1.0]), plateau, epochs=5)
    assert rates.rates == pytest.approx(np.repeat([1e-2, 1e-2, 5e-3, 2.5e-3, 2e-3], 2))
    assert trainer.history["learning_rate"] == pytest.approx([1e-2, 1e-2, 5e-3, 2.5e-3, 2e-3])
    rates = LearningRateMonitor()
    fit(folder, rates, LearningRateScheduler(lambda epoch, rate: rate / 10))
    assert rates.rates == pytest.approx(np.repeat([1e-3, 1e-4, 1e-5], 2))


def test_a_loss_that_is_no_number_ends_the_run(folder):
    x = X.copy()
    x[40:] = np.nan
    trainer = Trainer(folder)
    trainer.fit((x, Y), 3, callbacks=[TerminateOnNaN()], shuffle=False, verbose=False)
    assert (trainer.epoch, trainer.step) == (0, 1)
    assert np.isfinite(trainer.state.parameters["w1"].data).all()


def test_tables_of_epochs(folder, tmp_path):
    trainer = fit(folder, CSVLogger(tmp_path / "new/log.csv"), validation=(X, Y))
    rows = list(csv.DictReader((tmp_path / "new/log.csv").open()))
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert [float(row["val_loss"]) for row in rows] == trainer.history["val_loss"]


def test_tensorboard_reads_what_is_written(folder, tmp_path, capsys):
    pytest.importorskip("tensorboardX")
    from tensorboardX.event_file_writer import EventsWriter  # noqa: F401
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.graph_pb2 import GraphDef
    from tensorboardX.record_writer import masked_crc32c

    trainer = fit(folder, TensorBoard(tmp_path, update_freq=1, histogram_freq=1, write_graph=True))
    assert capsys.readouterr().out == ""
    (path,) = tmp_path.glob("events.out.tfevents.*")
    data, values, nodes = path.read_bytes(), {}, []
    while data:  # records of the event format: length, its checksum, content, its checksum
        length = int.from_bytes(data[:8], "little")
        content = data[12 : 12 + length]
        assert masked_crc32c(content) == int.from_bytes(data[12 + length : 16 + length], "little")
        event = Event.FromString(content)
        nodes += GraphDef.FromString(event.graph_def).node
        for value in event.summary.value:
            values.setdefault(value.tag, []).append(value.simple_value)
        data = data[16 + length :]
    assert values["epoch_loss"] == pytest.approx(trainer.history["loss"])
    assert len(values["batch_loss"]) == 6
    assert len(values["w1"]) == len(values["w1/gradient"]) == 3
    operators = [node.op_type for node in onnx.load(folder / "eval_model.onnx").graph.node]
    assert [node.op for node in nodes if node.op != "Variable"] == operators


def test_a_notebook_shows_a_table(folder, monkeypatch):
    shown = []
    package, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    package.get_ipython = lambda: types.SimpleNamespace(kernel=None)
    handle = types.SimpleNamespace(update=shown.append)
    display.display = lambda table, display_id: shown.append(table) or handle
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    trainer = Trainer(folder, threads=1)
    history = trainer.fit((X, Y), 3, validation=(X, Y))
    table = ET.fromstring(f"<div>{shown[-1]._repr_html_()}</div>")
    assert [cell.text for cell in table.iter("th")] == [
        "epoch", "loss", "learning_rate", "val_loss", "time", "1", "2", "3",
    ]  # fmt: skip
    losses = [row.find("td").text for row in table.iter("tr") if row.find("td") is not None]
    assert losses == [f"{loss:.4g}" for loss in history["loss"]]
    assert repr(shown[-1]).splitlines()[1].split()[:2] == ["1", losses[0]]
    assert re.fullmatch(r"3 epochs, [\d.]+ s", table.find("p").text)


def test_other_services_get_the_values(folder, monkeypatch):
    logged = []
    mlflow = types.ModuleType("mlflow")
    mlflow.log_params = lambda given: logged.append(given)
    mlflow.log_metrics = lambda values, step: logged.append((step, sorted(values)))
    wandb = types.ModuleType("wandb")
    wandb.run = None
    wandb.init = lambda **options: logged.append(options)
    wandb.log = lambda values: logged.append(values["epoch"])
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    fit(folder, MLflowLogger({"rate": 1}), WandbLogger(project="p"), epochs=1)
    assert logged == [{"rate": 1}, {"project": "p"}, (0, ["learning_rate", "loss"]), 0]


@pytest.mark.parametrize(
    ("name", "create"), [("mlflow", MLflowLogger), ("wandb", WandbLogger), ("tensorboardX", TensorBoard)]
)
def test_a_service_that_is_not_installed_is_named(name, create, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"needs the package {name}: pip install"):
        create()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("kind", "bar"), [(Terminal, True), (io.StringIO, False)])
def test_progress_is_a_bar_in_a_terminal_and_lines_elsewhere(folder, kind, bar):
    stream = kind()
    fit(folder, ProgbarLogger(stream), epochs=2)
    written = stream.getvalue()
    assert ("\r" in written) == bar
    assert ("[============            ] 1/2" in written) == bar
    assert written.count("\n") == 2
    assert "epoch 2/2" in written
    assert " left" not in written, "a short run does not say how long it takes"


def test_a_long_run_says_how_long_it_takes_yet(folder, monkeypatch):
    clock = iter(range(0, 100_000, 30))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    fit(folder, ProgbarLogger(stream), epochs=3)
    lines = stream.getvalue().splitlines()
    left = [re.search(r", (\d+) minutes? left$", line) for line in lines]
    assert [found is not None for found in left] == [True, True, False]
    assert int(left[0][1]) > int(left[1][1])


def test_lines_before_a_checkpoint_are_in_the_file(folder, tmp_path):
    found = []

    def look(batch, logs):
        lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
        found.append([line["step"] for line in lines if line["event"] in ("begin", "step")])

    save = ModelCheckpoint(tmp_path / "{step}.ckpt", save_freq=1)
    look_later = LambdaCallback(on_train_batch_begin=look)
    fit(folder, JSONLogger(tmp_path / "log.jsonl"), save, look_later, epochs=1)
    assert found[1] == [0, 1]
