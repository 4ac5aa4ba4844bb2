"""What `ortrain train` does the second time: it continues, keeps the best epoch, and overwrites nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys

import numpy as np
import pytest
from ortrain import Trainer
from ortrain.api import CheckpointState
from two_files import saved_in_two_files

__all__ = ["saved_in_two_files"]


def parameters(path):
    found = CheckpointState.load_checkpoint(path).parameters
    return {name: parameter.data.tobytes() for name, parameter in found}


@pytest.fixture
def trained(artifacts, train_npz, run):
    """Artifacts after a run of 12 epochs with a validation, and the options of the run."""
    options = ["--data", train_npz, "--validation", 0.25, "--lr", 0.05]
    run("train", artifacts, *options, "--epochs", 12, "--schedule", "linear")
    return artifacts, ["--data", train_npz, "--validation", 0.25]


def test_a_second_training_continues_and_keeps_the_first(trained, run):
    artifacts, options = trained
    first = {name: (artifacts / name).read_bytes() for name in ("best.ckpt", "last.ckpt")}
    evaluated = run("evaluate", artifacts, *options[:2], "--json").json
    assert evaluated["checkpoint"] == str(artifacts / "best.ckpt")
    again = run("train", artifacts, *options, "--epochs", 3, "--json")
    assert f"continues from {artifacts / 'best.ckpt'} (epoch 12, val_loss " in again.err
    # Not the rate at which the schedule of the first run ended.
    assert again.json["history"]["learning_rate"] == pytest.approx([0.05] * 3)
    assert again.json["history"]["loss"][-1] < evaluated["loss"]
    assert again.json["best"]["epoch"] > 0
    kept = [artifacts / f"{name}-1.ckpt" for name in ("best", "last")]
    assert sorted(again.json["kept"]) == sorted(map(str, kept))
    assert [path.read_bytes() for path in kept] == list(first.values())
    assert sorted(path.name for path in (artifacts / "runs").iterdir()) == ["1", "2"]
    assert len((artifacts / "runs/1/log.csv").read_text().splitlines()) == 13


def test_training_that_makes_it_worse_does_not_replace_the_best(trained, run):
    artifacts, options = trained
    before = (artifacts / "best.ckpt").read_bytes()
    ran = run("train", artifacts, *options, "--epochs", 2, "--lr", 50)
    assert "before training: val_loss " in ran.err
    assert f"best  {artifacts / 'best.ckpt'}: as before training" in ran.out
    assert "no epoch was better" in ran.out
    assert (artifacts / "best.ckpt").read_bytes() == before
    assert parameters(artifacts / "last.ckpt") != parameters(artifacts / "best.ckpt")


def test_the_start_is_chosen(trained, run):
    artifacts, options = trained
    best = parameters(artifacts / "best.ckpt")
    fresh = run("train", artifacts, *options, "--epochs", 1, "--from-start", "--json")
    assert "continues from" not in fresh.err
    first = run("evaluate", artifacts, *options[:2], "--checkpoint", artifacts / "checkpoint", "--json")
    assert "checkpoint (not trained)" in first.err
    assert fresh.json["history"]["loss"][0] == pytest.approx(first.json["loss"], rel=0.2)
    shown = run(
        "train", artifacts, *options, "--epochs", 1, "--checkpoint", artifacts / "best-1.ckpt", "--lr", 50
    ).err
    assert f"continues from {artifacts / 'best-1.ckpt'}" in shown
    assert parameters(artifacts / "best.ckpt") == best
    two = run("train", artifacts, *options, "--from-start", "--resume", artifacts / "last.ckpt", status=2).err
    assert "--from-start and --resume each say where to begin" in two


def test_a_finished_run_says_so(trained, run):
    artifacts, options = trained
    before = sorted((path, path.stat().st_mtime_ns) for path in artifacts.rglob("*"))
    ran = run("train", artifacts, *options, "--epochs", 12, "--resume", artifacts / "last.ckpt")
    assert f"the run of {artifacts / 'last.ckpt'} is finished: it has 12 epochs" in ran.err
    assert "--epochs 17 with --resume makes it longer" in ran.err
    assert ran.out == ""
    assert sorted((path, path.stat().st_mtime_ns) for path in artifacts.rglob("*")) == before
    found = run(
        "train", artifacts, *options, "--epochs", 5, "--resume", artifacts / "last.ckpt", "--json"
    ).json
    assert (found["finished"], found["epochs"]) == (True, 12)


def test_why_a_run_stopped_and_which_epoch_was_best(artifacts, train_npz, run):
    options = ["--data", train_npz, "--validation", 0.25, "--metric", "accuracy", "--monitor", "val_accuracy"]
    ran = run("train", artifacts, *options, "--epochs", 60, "--patience", 2, "--lr", 0.5, "--json")
    history = ran.json["history"]["val_accuracy"]
    best = ran.json["best"]
    assert best == {"epoch": int(np.argmax(history)) + 1, "val_accuracy": max(history)}
    assert ran.json["epochs"] == best["epoch"] + 2 < 60
    assert ran.json["stopped"] == "val_accuracy has not improved for 2 epochs"
    said = run("evaluate", artifacts, *options[:2]).err
    assert f"{artifacts / 'best.ckpt'} (epoch {best['epoch']}, " in said
    printed = run(
        "train", artifacts, *options, "--epochs", 60, "--patience", 1, "--lr", 0.5, "--from-start"
    ).out
    assert "stopped after epoch " in printed
    assert "val_accuracy has not improved for 1 epoch\n" in printed


def test_a_killed_run_is_resumed_from_its_last_checkpoint(artifacts, train_npz, run):
    options = ["--data", train_npz, "--epochs", "30", "--batch", "8", "--validation", "0.25"]
    command = [sys.executable, "-m", "ortrain", "train", str(artifacts), *map(str, options)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for _ in range(3):
            process.stderr.readline()
        process.kill()
        process.communicate(timeout=60)
    run("train", artifacts, *options, "--resume", "last")
    resumed = parameters(artifacts / "last.ckpt")
    assert len((artifacts / "runs/1/log.csv").read_text().splitlines()) == 31
    assert not list(artifacts.glob("*-1.ckpt"))
    run("train", artifacts, *options, "--from-start")
    assert parameters(artifacts / "last.ckpt") == resumed


def test_a_resumed_run_has_no_checkpoints_of_another(artifacts, train_npz, run):
    """Later epochs that the run no longer has, one that a killed process did not delete, and an interruption."""
    options = ["--data", train_npz, "--batch", 8, "--validation", 0.25]
    run("train", artifacts, *options, "--epochs", 6)
    folder = artifacts / "runs/1"
    later = {name: (folder / name).read_bytes() for name in ("epoch-5.ckpt", "epoch-6.ckpt")}
    for name in ("epoch-1.ckpt", "interrupted.ckpt"):
        shutil.copy(folder / "epoch-4.ckpt", folder / name)
        later[name] = (folder / name).read_bytes()
    later |= {name: (folder / name).read_bytes() for name in ("log.csv", "log.jsonl")}
    said = run("train", artifacts, *options, "--epochs", 5, "--resume", folder / "epoch-4.ckpt").err
    aside = folder / "set-aside-1"
    assert (
        "the run is resumed after 4 epochs; moved epoch-1.ckpt, epoch-5.ckpt, epoch-6.ckpt, interrupted.ckpt, "
        f"which are not part of it, to {aside}\n" in said
    )
    assert f"copied log.csv and log.jsonl, with the later epochs, to {aside}\n" in said
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == later
    assert len((folder / "log.csv").read_text().splitlines()) == 6
    assert sorted(path.name for path in folder.glob("*.ckpt")) == [f"epoch-{n}.ckpt" for n in (4, 5)]
    went_on = run("train", artifacts, *options, "--epochs", 6, "--resume", "last").err
    assert "moved" not in went_on
    assert "copied" not in went_on
    (folder / "epoch-6.ckpt").rename(folder / "interrupted.ckpt")
    resumed = run("train", artifacts, *options, "--epochs", 7, "--resume", folder / "interrupted.ckpt").err
    assert "moved" not in resumed
    assert (folder / "interrupted.ckpt").exists()
    run("train", artifacts, *options, "--epochs", 8, "--resume", aside / "epoch-6.ckpt")
    assert (folder / "epoch-8.ckpt").exists()


def test_what_a_killed_run_left_of_its_checkpoints_is_removed(trained, run):
    """By the next run, which has a folder of its own; names that are only similar stay."""
    artifacts, options = trained
    names = ["runs/1/epoch-13.ckpt.tmp-99-0", "runs/1/interrupted.ckpt.tmp-99-0", "last.ckpt.tmp-99-0"]
    others = ["runs/1/epoch-best.ckpt.tmp-99-0", "runs/1/notes.txt.tmp-99-0", "runs/notes"]
    for name in names + others:
        (artifacts / name).write_bytes(b"half")
    run("train", artifacts, *options, "--epochs", 1)
    assert [name for name in names + others if (artifacts / name).exists()] == others


def test_checkpoints_above_2_gb_keep_their_second_file(
    artifacts, train_npz, run, tmp_path, saved_in_two_files
):
    """When the best and the last are named, numbered, set aside and deleted."""
    options = ["--data", train_npz, "--validation", 0.25, "--lr", 0.05]
    run("train", artifacts, *options, "--epochs", 5)
    first = parameters(artifacts / "best.ckpt")
    run("train", artifacts, *options, "--epochs", 2)
    assert parameters(artifacts / "best-1.ckpt") == first
    run("train", artifacts, *options, "--epochs", 6, "--resume", artifacts / "runs/1/epoch-4.ckpt")
    run("train", artifacts, *options, "--epochs", 1, "--checkpoint", artifacts / "runs/1/epoch-4.ckpt")
    said = run("artifacts", tmp_path / "model.onnx", "--loss", "cross_entropy", "--out", artifacts).err
    assert "best-" in said
    found = sorted(path.relative_to(artifacts) for path in artifacts.rglob("*.ckpt"))
    for path in found:
        assert parameters(artifacts / path), path
    assert {"runs/1/set-aside-1/epoch-5.ckpt", "best-1.ckpt"} <= {str(path) for path in found}
    data = sorted(path.relative_to(artifacts) for path in artifacts.rglob("*.ckpt.data*"))
    assert [f"{path}.data" for path in found] == [str(path) for path in data]


def test_best_and_last_name_the_checkpoints_of_the_folder(trained, run, tmp_path, monkeypatch):
    artifacts, options = trained
    for name in ("best", "last"):
        said = run("evaluate", artifacts, *options[:2], "--checkpoint", name).err
        assert f"the parameters are those of {artifacts / name}.ckpt" in said
    monkeypatch.chdir(tmp_path)
    (artifacts / "best.ckpt").rename(tmp_path / "last")  # a file comes first
    assert (
        "the parameters are those of last ("
        in run("evaluate", artifacts, *options[:2], "--checkpoint", "last").err
    )


def test_the_result_of_an_earlier_version_is_found(artifacts, train_npz, run):
    trainer = Trainer(artifacts, learning_rate=0.05)
    with np.load(train_npz) as file:
        trainer.fit((file["image"], file["labels"]), 3, verbose=False)
    trainer.save(artifacts / "trained.ckpt")
    found = run("evaluate", artifacts, "--data", train_npz, "--json")
    assert found.json["checkpoint"] == str(artifacts / "trained.ckpt")
    ran = run("train", artifacts, "--data", train_npz)
    assert f"continues from {artifacts / 'trained.ckpt'} (epoch 3, loss " in ran.err
    assert (artifacts / "trained.ckpt").exists()
    assert run("evaluate", artifacts, "--data", train_npz, "--json").json["checkpoint"] == str(
        artifacts / "best.ckpt"
    )


def test_artifacts_that_are_made_again_begin_anew(trained, run, tmp_path):
    artifacts, options = trained
    best = (artifacts / "best.ckpt").read_bytes()
    said = run("artifacts", tmp_path / "model.onnx", "--loss", "cross_entropy", "--out", artifacts).err
    assert f"is now {artifacts / 'best-1.ckpt'}" in said
    assert (artifacts / "best-1.ckpt").read_bytes() == best
    assert "continues" not in run("train", artifacts, *options).err


def test_a_checkpoint_of_other_artifacts_is_named(trained, run, tmp_path, rows):
    artifacts, options = trained
    run(
        "artifacts",
        tmp_path / "model.onnx",
        "--loss",
        "cross_entropy",
        "--freeze",
        "b",
        "--out",
        tmp_path / "other",
    )
    shutil.copy(artifacts / "best.ckpt", tmp_path / "other/best.ckpt")
    said = run("train", tmp_path / "other", *options, status=1).err
    assert "do not match the checkpoint" in said
    assert f"was to continue from {tmp_path / 'other/best.ckpt'}; --from-start begins with" in said
