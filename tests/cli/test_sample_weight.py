"""Weights of rows on the command line. The reference is a table in which a row of weight 2 is there twice."""

from __future__ import annotations

import csv
import json

import numpy as np
from ortrain.api import CheckpointState

RNG = np.random.default_rng(2)
ROWS = [[x, y, int(x + 0.5 * y + 0.3 * z > 0), n % 3] for n, (x, y, z) in enumerate(RNG.normal(size=(60, 3)))]


def write(path, rows, head):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *rows])
    return path


def test_a_row_of_weight_two_counts_as_two_rows(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    head = ["a", "b", "kind", "count"]
    write(tmp_path / "weighted.csv", ROWS, head)
    write(tmp_path / "repeated.csv", [row[:3] for row in ROWS for _ in range(row[3])], head[:3])
    run("new", "mlp", "--data", "repeated.csv", "--out", "model.onnx")
    scores = {}
    for name, options in (("weighted", ["--sample-weight", "count"]), ("repeated", [])):
        run("artifacts", "model.onnx", "--loss", "cross_entropy", "--out", name, *options[:1])
        run(
            "train", name, "--data", f"{name}.csv", "--target", "kind", "--no-preprocess", "--no-shuffle",
            "--batch", 200, "--epochs", 5, "--lr", 0.05, *options,
        )  # fmt: skip
        evaluated = run("evaluate", name, "--data", f"{name}.csv", "--batch", 200, "--json").json["loss"]
        scores[name] = [
            evaluated,
            *np.ravel(run("predict", name, "--data", f"{name}.csv", "--json").json["scores"][1]),
        ]
    # Row 1 of the weighted table is row 0 of the other, in which the rows of weight 0 are missing.
    first = run("predict", "repeated", "--data", "repeated.csv", "--json").json["scores"][0]
    np.testing.assert_allclose(scores["weighted"][1:], first, rtol=1e-3)
    np.testing.assert_allclose(scores["weighted"][0], scores["repeated"][0], rtol=1e-4)


def test_weights_are_no_feature_and_are_found_again(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "t.csv", [[*row[:3], row[3] + 1] for row in ROWS], ["a", "b", "kind", "count"])
    write(tmp_path / "plain.csv", [row[:2] for row in ROWS], ["a", "b"])
    train = ("train", "--data", "t.csv", "--target", "kind")
    ran = run(*train, "--sample-weight", "count", "--validation", 0.2)
    assert "the columns are preprocessed: a (number); b (number)" in ran.err
    run(*train)  # takes the weights of the same column
    stored = CheckpointState.load_checkpoint("artifacts/last.ckpt").properties["ortrain.columns"]
    assert json.loads(str(stored)) == {"features": ["a", "b"], "target": "kind", "weight": "count"}
    found = [
        run("predict", "artifacts", "--data", name, "--json").json["scores"]
        for name in ("t.csv", "plain.csv")
    ]
    assert found[0] == found[1]
    said = run(*train, "--sample-weight", "cuont", status=1)
    assert "--sample-weight: t.csv has no cuont, it has a, b, kind, count" in said.err
    write(tmp_path / "negative.csv", [[*row[:3], -1] for row in ROWS], ["a", "b", "kind", "count"])
    said = run("train", "artifacts", "--data", "negative.csv", "--target", "kind", status=1)
    assert "expected weights of 0 or more" in said.err


def test_artifacts_without_weights_say_how_to_get_some(run, artifacts, train_npz):
    said = run("train", artifacts, "--data", train_npz, "--sample-weight", "w", status=1)
    assert "take no weights; `ortrain artifacts --sample-weight` makes artifacts that do" in said.err
