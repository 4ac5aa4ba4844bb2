"""`ortrain train` with differential privacy and with MeZO, as a user runs it: on a table and on the demo's digits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib import resources

import numpy as np
import pytest
from ortrain.trainer import Accountant, Trainer

pytest.importorskip("dp_accounting")


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A table with numbers, text and missing cells, in the current folder."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(5)
    ages, smokes = rng.integers(20, 90, 240), rng.choice(["yes", "no", ""], 240)
    ill = (ages - 50) / 20 + 1.5 * (smokes == "yes") + rng.normal(0, 0.5, 240) > 0.5
    lines = [f"{a},{s},{'ill' if i else 'well'}" for a, s, i in zip(ages, smokes, ill, strict=True)]
    (tmp_path / "patients.csv").write_text("\n".join(["age,smoker,health", *lines, ""]))
    return tmp_path / "patients.csv"


@pytest.fixture
def digits(tmp_path, monkeypatch):
    """Some of the handwritten digits that come with the package."""
    monkeypatch.chdir(tmp_path)
    with resources.files("ortrain").joinpath("demo_data/digits.npz").open("rb") as file:
        arrays = dict(np.load(file))
    images, labels = (next(a for a in arrays.values() if a.ndim == ndim)[:300] for ndim in (3, 1))
    np.savez(tmp_path / "digits.npz", x=images.reshape(len(images), -1).astype(np.float32), y=labels)
    return tmp_path / "digits.npz"


def test_a_table_is_trained_privately_and_trained_further(run, table):
    options = ("train", "--data", table, "--validation", 0.25)
    ran = run(*options, "--epsilon", 3, "--epochs", 3)
    assert "without noise, such as means, deviations and categories; epsilon does not include them" in ran.err
    assert "privacy  epsilon 2.99" in ran.out or "privacy  epsilon 3 " in ran.out
    assert "at delta 1e-05, noise multiplier " in ran.out
    trained = Trainer("artifacts", checkpoint="artifacts/best.ckpt")
    assert trained.accountant.history[0][1:] == (32 / 180, 18)
    log = [
        json.loads(line) for line in (table.parent / "artifacts/runs/1/log.jsonl").read_text().splitlines()
    ]
    epochs = [line for line in log if line["event"] == "epoch"]
    assert [line["epsilon"] for line in epochs] == sorted(line["epsilon"] for line in epochs)
    assert "samples" not in {line["event"] for line in log}  # misread rows may be of the same people
    header = (table.parent / "artifacts/runs/1/log.csv").read_text().splitlines()[0]
    assert "epsilon" in header.split(",")
    wrong = run(*options, "--epochs", 1, status=2).err
    assert "best.ckpt comes from steps with differential privacy, which steps without it would undo" in wrong
    assert "beyond the 2.99" in run(*options, "--epsilon", 3, status=1).err
    more = run(*options, "--epsilon", 5, "--epochs", 2, "--json").json
    assert 4.9 < more["epsilon"] <= 5
    assert more["delta"] == 1e-5
    assert more["history"]["epsilon"][-1] == more["epsilon"]
    run("evaluate", "artifacts", "--data", table)
    ended = run(*options, "--no-private", "--epochs", 1, "--json").json
    assert "epsilon" not in ended
    assert Trainer("artifacts", checkpoint="artifacts/last.ckpt").accountant.is_void


def test_without_a_validation_the_last_epoch_is_the_best(run, digits):
    ran = run("train", "--data", digits, "--private", "--epochs", 3, "--keep", 1, "--json")
    assert ran.json["best"]["epoch"] == 3
    assert list((digits.parent / "artifacts/runs/1").glob("*.ckpt")) == [
        digits.parent / "artifacts/runs/1/epoch-3.ckpt"
    ]
    accountant = Accountant([(1.0, 32 / 300, 27)])
    assert ran.json["epsilon"] == accountant.epsilon(1e-5)
    assert ran.json["noise_multiplier"] == 1


@pytest.mark.parametrize(
    "options", [("--noise-multiplier", "1.5"), ("--optimizer", "mezo")], ids=["private", "mezo"]
)
def test_a_run_that_ctrl_c_ends_is_resumed(run, table, options):
    command = ["train", "--data", str(table), "--batch", "16", *options]
    process = subprocess.Popen(
        [sys.executable, "-m", "ortrain", *command, "--epochs", "100000"],
        cwd=table.parent,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    said, end = [], time.monotonic() + 60
    while not any(line.startswith("epoch 2/") for line in said):
        said.append(process.stderr.readline())
        assert said[-1], "".join(said)
        assert time.monotonic() < end
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=60)[1]
    assert process.returncode == 130, rest
    assert "saved artifacts/runs/1/interrupted.ckpt" in rest
    saved = Trainer("artifacts", checkpoint="artifacts/runs/1/interrupted.ckpt")
    done, before = saved.saved_run["epoch"], saved.accountant
    if before is not None:
        assert before.history == [(1.5, 16 / 240, saved.saved_run["step"])]
        assert f"privacy  epsilon {before.epsilon(1e-5):.4g} at delta 1e-05" in rest
    resumed = run(*command, "--epochs", done + 2, "--resume", "artifacts/runs/1/interrupted.ckpt", "--json")
    assert resumed.json["steps"] == 15 * (done + 2)
    line = next(line for line in resumed.err.splitlines() if line.startswith(f"epoch {done + 1}/"))
    assert float(line.split()[2]) < 60  # seconds since it was resumed
    if before is not None:
        assert resumed.json["epsilon"] == Accountant([(1.5, 16 / 240, 15 * (done + 2))]).epsilon(1e-5)


def test_mezo_is_trained_further_and_in_two_parts_with_the_same_bits(run, digits):
    options = ("train", "--data", digits, "--optimizer", "mezo", "--batch", 50, "--validation", 0.2)
    whole = run(*options, "--epochs", 4, "--json").json
    parameters = {
        name: value.data for name, value in Trainer("artifacts", checkpoint=whole["last"]).state.parameters
    }
    (digits.parent / "artifacts").rename(digits.parent / "whole")
    run(*options, "--epochs", 2)
    parts = run(*options, "--epochs", 4, "--resume", "artifacts/last.ckpt", "--json").json
    assert parts["history"] == whole["history"]
    for name, value in Trainer("artifacts", checkpoint=parts["last"]).state.parameters:
        assert value.data.tobytes() == parameters[name].tobytes(), name
    further = run("train", "artifacts", "--data", digits, "--batch", 50, "--validation", 0.2)
    assert f"with the learning rate {whole['history']['learning_rate'][0]:.6g}" in further.err
    assert (
        "--optimizer sgd: the artifacts in artifacts already have"
        in run("train", "artifacts", "--data", digits, "--optimizer", "sgd", status=2).err
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--accumulate", "2"), "--accumulate 2"),
        (("--augment", "flip,mixup"), "--augment flip,mixup"),
        (("--no-shuffle",), "--no-shuffle"),
        (("--sample-weight", "w"), "--sample-weight"),
        (("--optimizer", "mezo"), "--optimizer mezo"),
        (("--monitor", "loss"), "--monitor loss"),
        (("--patience", "2"), "--patience 2"),
        (("--schedule", "on_plateau"), "--schedule on_plateau"),
        (("--noise-multiplier", "2"), "--noise-multiplier"),
        (("--no-private",), "--no-private"),
    ],
)
def test_options_that_do_not_go_together_are_both_named(run, digits, options, named):
    ran = run("train", "--data", digits, "--epsilon", 2, *options, status=2)
    assert (
        f"{named} and --epsilon" in ran.err or f"--epsilon and {named}" in ran.err or "--epsilon 2" in ran.err
    )
    assert named in ran.err
    assert not (digits.parent / "artifacts").exists()


def test_without_the_package_the_command_says_what_to_install(run, digits, monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    ran = run("train", "--data", digits, "--private", status=1)
    assert "computing epsilon needs dp-accounting: pip install 'ortrain[privacy]'" in ran.err
    assert not (digits.parent / "artifacts").exists()


def test_artifacts_for_mezo_have_its_settings(run, digits):
    run("new", "mlp", "--data", digits, "--out", "model.onnx")
    made = ("artifacts", "model.onnx", "--loss", "cross_entropy", "--optimizer", "mezo")
    run(*made, "--setting", "epsilon=0.01", "--weight-decay", 0.1, "--out", "m")
    run("train", "m", "--data", digits)
    log = (digits.parent / "m/runs/1/log.jsonl").read_text().splitlines()
    assert json.loads(log[0])["settings"]["mezo"] == "epsilon 0.01"
    assert "mezo has no beta; it has epsilon" in run(*made, "--setting", "beta=1", status=2).err
    assert "expected NAME=NUMBER above 0" in run(*made, "--setting", "epsilon=0", status=2).err
