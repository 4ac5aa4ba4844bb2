"""A network that fits data: written by `ortrain new`, and made by `ortrain train` without artifacts."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

RNG = np.random.default_rng(4)
ROWS = RNG.normal(size=(90, 4))
KINDS = np.array(["ant", "bee", "cat"])[ROWS[:, :3].argmax(axis=1)]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "insects.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["x", "b", "kind", "c", "d"])
        writer.writerows([*row[:2], kind, *row[2:]] for row, kind in zip(ROWS.tolist(), KINDS, strict=True))
    return path


def sizes_of(path):
    session = onnxruntime.InferenceSession(path)
    (taken,), (given,) = session.get_inputs(), session.get_outputs()
    return taken.name, taken.shape[1:], given.shape[1:]


def test_train_without_artifacts_picks_a_network(table, tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = [
        "--data",
        table,
        "--target",
        "kind",
        "--epochs",
        25,
        "--lr",
        0.02,
        "--metric",
        "accuracy",
        "--json",
    ]
    ran = run("train", *options)
    assert "for the network mlp (4 numbers a row, 3 classes) with the loss cross_entropy" in ran.err
    assert ran.json["history"]["accuracy"][-1] > 0.9
    again = run("train", *options)
    assert "no DIR was given: trains the artifacts in artifacts" in again.err
    assert f"continues from {Path('artifacts/best.ckpt')}" in again.err
    assert set(run("predict", "artifacts", "--data", table, "--json").json["predicted"]) == set(KINDS)


@pytest.mark.parametrize("network", ["mlp", "cnn", "resnet", "gru", "transformer"])
def test_a_network_fits_the_data_and_trains(network, tmp_path, run):
    labels = np.arange(24) % 4
    rows = {
        "mlp": RNG.normal(size=(24, 5)),
        "cnn": RNG.normal(size=(24, 3, 9, 8)),
        "resnet": RNG.normal(size=(24, 9, 8)),
        "gru": RNG.normal(size=(24, 6, 2)),
        "transformer": RNG.integers(0, 11, (24, 7)),
    }[network]
    np.savez(tmp_path / "d.npz", signal=rows.astype(np.float32) if rows.dtype == float else rows, y=labels)
    assert "d.npz: arrays with 24 rows\n" in run("inspect", tmp_path / "d.npz").out
    model = tmp_path / "model.onnx"
    found = run("new", network, "--data", tmp_path / "d.npz", "--out", model, "--json").json
    assert (found["outputs"], found["loss"]) == (4, "cross_entropy")
    onnx.checker.check_model(onnx.load(model), full_check=True)
    shape = [1, 9, 8] if network == "resnet" else ["time", 2] if network == "gru" else list(rows.shape[1:])
    assert sizes_of(model) == ("signal", shape, [4])
    run("artifacts", model, "--loss", found["loss"], "--out", tmp_path / "a")
    ran = run("train", tmp_path / "a", "--data", tmp_path / "d.npz", "--epochs", 15, "--lr", 0.01, "--json")
    history = ran.json["history"]["loss"]
    assert history[-1] < history[0]


def test_pictures_and_numbers(table, tmp_path, run):
    images = pytest.importorskip("PIL.Image")
    for kind, mode in (("day", "RGB"), ("night", "RGB")):
        (tmp_path / "pictures" / kind).mkdir(parents=True)
        for number in range(4):
            images.new(mode, (100, 50)).save(tmp_path / f"pictures/{kind}/{number}.png")
    out = ["--out", tmp_path / "m.onnx"]
    run("new", "cnn", "--data", tmp_path / "pictures", *out)
    assert sizes_of(tmp_path / "m.onnx") == ("image", [3, 32, 64], [2])
    run("new", "resnet", "--data", tmp_path / "pictures", "--size", 24, *out)
    assert sizes_of(tmp_path / "m.onnx") == ("image", [3, 24, 24], [2])
    np.savetxt(tmp_path / "n.csv", ROWS, delimiter=",", header="a,b,c,price", comments="")
    said = run("new", "mlp", "--data", tmp_path / "n.csv", *out).out
    assert "mlp for 3 numbers a row, 1 number to predict" in said
    assert "--loss mse" in said
    assert sizes_of(tmp_path / "m.onnx") == ("features", [3], [1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cnn", "--target", "kind"), r"cnn: expected images, found rows of shape \[4\]; mlp takes these"),
        (("mlp", "--target", "sort"), "has no column sort, it has x, b, kind, c, d"),
        (("transformer", "--target", "kind"), "numbers that are not tokens; mlp takes these"),
        (("mlp", "--target", "kind", "--task", "numbers"), "expected numbers as targets, found"),
    ],
)
def test_what_does_not_fit_is_named(arguments, message, table, tmp_path, run):
    import re

    said = run("new", *arguments, "--data", table, "--out", tmp_path / "m.onnx", status=1).err
    assert re.search(message, said), said
    assert not (tmp_path / "m.onnx").exists()
