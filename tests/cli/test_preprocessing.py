"""Tables with text, dates and missing cells, pictures of several sizes, and text: what a run does to them.

Predictions of stock onnxruntime from the raw columns are the reference.
"""

from __future__ import annotations

import csv
import datetime
import json

import numpy as np
import onnx
import onnxruntime
import pytest
from ortrain.api import CheckpointState
from ortrain.preprocessing import tables

RNG = np.random.default_rng(7)
HEAD = ["id", "width", "age", "color", "picked", "seen", "kind"]


def write(path, rows, head=HEAD):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows(rows)
    return path


def plants(count=150):
    """Rows whose kind follows from the color, the width and the date, with missing cells in most columns."""
    rows = []
    for number in range(count):
        kind = ["ant", "bee", "cat"][number % 3]
        color = {"ant": "red", "bee": "blue", "cat": "red"}[kind]
        width = 5000 + (2000 if kind == "cat" else 0) + RNG.normal() * 300
        day = datetime.date(2020, 1, 1) + datetime.timedelta(days=int(RNG.integers(0, 900)))
        seen = datetime.datetime(2021, 3, 1, 8, 30) + datetime.timedelta(minutes=int(RNG.integers(0, 90000)))
        age = "NA" if number % 7 == 0 else int(RNG.integers(0, 60))
        rows.append(
            [
                f"plant {number}",
                f"{width:.2f}",
                age,
                "" if number % 11 == 0 else color,
                "" if number % 13 == 0 else day.isoformat(),
                seen.isoformat(" ", "minutes"),
                kind,
            ]
        )
    return rows


def cells_for(session, rows):
    """Return the raw columns as the inputs of a session take them."""
    feeds = {}
    for value in session.get_inputs():
        cells = [row[HEAD.index(value.name)] for row in rows]
        real = value.type == "tensor(double)"
        feeds[value.name] = (
            np.array([np.nan if cell in ("", "NA") else float(cell) for cell in cells])
            if real
            else np.array(cells, dtype=object)
        )
    return feeds


def test_a_table_of_people_trains_predicts_and_exports(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = plants()
    data = write(tmp_path / "plants.csv", rows)
    ran = run(
        "train", "--data", data, "--validation", 0.2, "--epochs", 25, "--lr", 0.01, "--metric", "accuracy"
    )
    assert "the column id is left out: it has 150 different texts in 150 rows" in ran.err
    assert "color (3 categories: missing, blue, red)" in ran.err
    assert "seen (date and time)" in ran.err
    found = run("evaluate", "artifacts", "--data", data, "--metric", "accuracy", "--json").json
    assert found["accuracy"] > 0.95
    raw = [[*row[:3], "green" if n == 4 else row[3], *row[4:-1]] for n, row in enumerate(rows)]
    new = write(tmp_path / "new.csv", raw, HEAD[:-1])
    said = run("predict", "artifacts", "--data", new, "--json")
    assert "categories that the training rows do not have count as none: color 'green'" in said.err
    run("export", "artifacts", "plants.onnx", "--with-preprocessing")
    session = onnxruntime.InferenceSession("plants.onnx")
    assert [value.name for value in session.get_inputs()] == HEAD[1:-1]
    scores = session.run(None, cells_for(session, raw))[0]
    np.testing.assert_allclose(said.json["scores"], scores, rtol=1e-4, atol=1e-5)
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == ["ant", "bee", "cat"]
    shuffled = write(tmp_path / "s.csv", [row[::-1] for row in raw], HEAD[:-1][::-1])
    assert run("predict", "artifacts", "--data", shuffled, "--json").json["scores"] == said.json["scores"]
    wrong = write(tmp_path / "w.csv", [[*row[:1], "wide", *row[2:]] for row in raw[:2]], HEAD[:-1])
    said = run("predict", "artifacts", "--data", wrong, status=1)
    assert "column width: expected a number, found 'wide' in line 2\n" in said.err


def test_arrays_for_a_model_of_encoded_columns_are_encoded_or_refused(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [[5000 + 300 * RNG.normal(), RNG.normal(), n % 2] for n in range(60)]
    write(tmp_path / "t.csv", rows, ["width", "height", "kind"])
    run("train", "--data", "t.csv")
    features = np.array(rows)[:, :2]
    expected = run("predict", "artifacts", "--data", "t.csv", "--json").json["scores"]
    np.savez(
        "columns.npz", height=features[:, 1], width=features[:, 0], kind=np.array(rows)[:, 2].astype(int)
    )
    assert run("predict", "artifacts", "--data", "columns.npz", "--json").json["scores"] == expected
    evaluated = [run("evaluate", "artifacts", "--data", f, "--json").json for f in ("t.csv", "columns.npz")]
    assert evaluated[0] == evaluated[1]
    np.savez("matrix.npz", x=features, y=np.zeros(60, int))
    np.save("matrix.npy", features)
    for name in ("matrix.npz", "matrix.npy"):
        for command in ("predict", "evaluate", "train"):
            said = run(command, "artifacts", "--data", name, status=1)
            assert (
                "expected CSV, Parquet, JSON lines, or NPZ with an array for each column: width, height"
                in said.err
            )


def test_means_are_those_of_the_rows_that_are_trained_on(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = RNG.normal(size=100) * 50
    write(tmp_path / "t.csv", [[value, n % 2] for n, value in enumerate(values)], ["x", "y"])
    run("train", "--data", "t.csv", "--validation", 0.3, "--seed", 5)
    stored = json.loads(
        str(CheckpointState.load_checkpoint("artifacts/best.ckpt").properties["ortrain.preprocessing"])
    )
    trained = np.sort(np.random.default_rng([5, 0x5B117]).permutation(100)[30:])
    assert stored["columns"][0]["mean"] == pytest.approx(values[trained].mean())
    assert stored["columns"][0]["deviation"] == pytest.approx(values[trained].std())


def test_days_are_counted_as_the_calendar_does():
    """The nodes count days of all kinds of years as Python's calendar does."""
    from ortrain.preprocessing.nodes import with_preprocessing

    days = [datetime.date(1899, 12, 31) + datetime.timedelta(days=17 * n) for n in range(6000)]
    cells = {"day": [day.isoformat() for day in days]}
    plan = tables.look_at(cells, "test").fitted(cells, range(len(days)))
    taken = onnx.helper.make_tensor_value_info("x", 1, ["batch", plan.width])
    given = onnx.helper.make_tensor_value_info("y", 1, ["batch", plan.width])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", [taken], [given])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(with_preprocessing(model, plan).SerializeToString())
    found = session.run(None, {"day": np.array(cells["day"], dtype=object)})[0]
    numbers = np.array([day.toordinal() for day in days], np.float64)
    np.testing.assert_allclose(found[:, 0], (numbers - numbers.mean()) / numbers.std(), atol=1e-6)
    angles = 2 * np.pi * np.array([day.weekday() for day in days]) / 7
    np.testing.assert_allclose(found[:, 3:5], np.stack([np.sin(angles), np.cos(angles)], 1), atol=1e-6)
    np.testing.assert_allclose(found, plan.encoded(cells, "test"), atol=1e-6)


def test_a_column_of_numbers_with_a_mistake_is_named():
    cells = {"age": [*range(200), "forty"]}
    with pytest.raises(ValueError, match=r"column age: expected numbers, .*, found 'forty' in row 200"):
        tables.look_at(cells, "t.csv")


def test_pictures_of_several_sizes_and_orientations(run, tmp_path, monkeypatch):
    """Upright or turned by EXIF, the pictures of a class have the bright half on one side."""
    images = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    for number in range(60):
        name = "left" if number % 2 else "right"
        size = int(RNG.integers(16, 40))
        pixels = RNG.integers(0, 60, (size, size, 3)).astype(np.uint8)
        half = slice(0, size // 2) if name == "left" else slice(size // 2, size)
        pixels[:, half] += 150
        (tmp_path / "data" / name).mkdir(parents=True, exist_ok=True)
        image, saved = images.fromarray(pixels), {}
        if number % 3 == 0:
            saved["exif"] = images.Exif()
            saved["exif"][0x112] = 6  # is to be turned clockwise
            image = image.rotate(90)
        image.save(tmp_path / f"data/{name}/{number}.png", **saved)
    options = ["--validation", 0.2, "--epochs", 4, "--lr", 0.003]
    run("new", "cnn", "--data", "data", "--size", 16)
    run("artifacts", "model.onnx", "--loss", "cross_entropy")
    ran = run("train", "artifacts", "--data", "data", *options, "--metric", "accuracy")
    assert "the pictures are normalized (measured): mean 0.4" in ran.err
    assert (
        run("evaluate", "artifacts", "--data", "data", "--metric", "accuracy", "--json").json["accuracy"] == 1
    )
    run("predict", "artifacts", "--data", "data", "--out", "sorted")
    assert len(list((tmp_path / "sorted/left").iterdir())) == 30
    assert all(path.name.startswith("left_") for path in (tmp_path / "sorted/left").iterdir())
    found = run("predict", "artifacts", "--data", "data", "--json").json
    run("export", "artifacts", "p.onnx", "--with-preprocessing")
    session = onnxruntime.InferenceSession("p.onnx")
    for row in (0, 1, 2, 59):
        turned = images.open(tmp_path / "data" / found["files"][row])
        pixels = np.asarray(turned.rotate(-90) if turned.getexif().get(0x112) == 6 else turned)
        scores = session.run(None, {"pixels": pixels[None]})[0]
        np.testing.assert_allclose(found["scores"][row], scores[0], atol=0.05)
    np.savez("pixels.npz", x=np.zeros((3, 3, 16, 16), np.float32))
    said = run("predict", "artifacts", "--data", "pixels.npz", status=1)
    assert "trained on normalized pictures (mean 0.4" in said.err
    ran = run("train", "artifacts", "--data", "data", "--from-start", "--normalize", "imagenet")
    assert "mean 0.485, 0.456, 0.406, deviation 0.229, 0.224, 0.225" in ran.err


def test_predictions_as_csv_and_json_lines(run, artifacts, train_npz, tmp_path):
    for name in ("p.csv", "p.jsonl"):
        run("predict", artifacts, "--data", train_npz, "--out", tmp_path / name)
    with (tmp_path / "p.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert len(rows) == len(lines) == 120
    for row, line in zip(rows, lines, strict=True):
        np.testing.assert_allclose([float(row[f"scores {n}"]) for n in range(3)], line["scores"], rtol=1e-6)


def test_text_becomes_the_tokens_of_a_file(run, tmp_path, monkeypatch):
    tokenizers = pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    words = ["[PAD]", "[UNK]", "good", "bad", "a", "film", "very", "not"]
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save("words.json")
    texts = [[n, f"a very {'good' if n % 2 else 'bad'} film", n % 2] for n in range(60)]
    write(tmp_path / "t.csv", texts, ["stars", "review", "label"])
    ran = run("train", "--data", "t.csv", "--tokenizer", "words.json", "--epochs", 8, "--metric", "accuracy")
    assert "for the network transformer" in ran.err
    assert "the text is the column review, 4 tokens per row" in ran.err
    (tmp_path / "words.json").unlink()
    write(tmp_path / "new.csv", [["good film"], ["a bad film not good at all"]], ["review"])
    scores = np.array(run("predict", "artifacts", "--data", "new.csv", "--json").json["scores"])
    assert scores.argmax(axis=1).tolist() == [1, 0]
    write(tmp_path / "wrong.csv", [["a good film", 0]], ["review", "label"])
    run("train", "artifacts", "--data", "t.csv", "--validation", "wrong.csv")
    log = (tmp_path / "artifacts/runs/2/log.jsonl").read_text().splitlines()
    found = [entry for line in log if (entry := json.loads(line))["event"] == "samples"][-1]
    assert found["samples"][0]["tokens"] == ["a", "good", "film"]  # without the padding token
    said = run("export", "artifacts", "t.onnx", "--with-preprocessing", status=1)
    assert "a tokenizer, for which ONNX has no operator" in said.err


def test_a_model_of_pictures_of_any_size_takes_the_given_size(run, tmp_path, monkeypatch):
    images = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    for number in range(12):
        name = ["dark", "light"][number % 2]
        (tmp_path / "data" / name).mkdir(parents=True, exist_ok=True)
        pixels = RNG.integers(0, 40, (20, 30, 3)) + 200 * (number % 2)
        images.fromarray(pixels.astype(np.uint8)).save(tmp_path / f"data/{name}/{number}.png")
    weight = RNG.normal(size=(3, 5)).astype(np.float32)
    nodes = [
        onnx.helper.make_node("GlobalAveragePool", ["x"], ["pooled"]),
        onnx.helper.make_node("Flatten", ["pooled"], ["flat"]),
        onnx.helper.make_node("MatMul", ["flat", "fc.weight"], ["y"]),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "model",
        [onnx.helper.make_tensor_value_info("x", 1, ["n", 3, "height", "width"])],
        [onnx.helper.make_tensor_value_info("y", 1, ["n", 5])],
        [onnx.numpy_helper.from_array(weight, "fc.weight")],
    )
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), "model.onnx")
    run("artifacts", "model.onnx", "--classes", 2)
    said = run("train", "artifacts", "--data", "data", status=1)
    assert "`ortrain train --size HEIGHTxWIDTH` sets a free height and width" in said.err
    said = run("train", "artifacts", "--data", "data", "--size", "8x", status=2)
    assert "expected a height and a width, such as 48x192, found '8x'" in said.err
    run("train", "artifacts", "--data", "data", "--size", "8x12", "--epochs", 2, "--validation", 0.25)
    said = run("train", "artifacts", "--data", "data", "--size", 8, status=1)
    assert "--size: expected 8x12, the size that the model was trained with, found 8x8" in said.err
    run("train", "artifacts", "--data", "data")
    found = run("predict", "artifacts", "--data", "data", "--json").json
    run("export", "artifacts", "p.onnx", "--with-preprocessing")
    run("export", "artifacts", "e.onnx")
    whole, network = onnxruntime.InferenceSession("p.onnx"), onnxruntime.InferenceSession("e.onnx")
    for row in (0, 11):
        picture = images.open(tmp_path / "data" / found["files"][row])
        scores = whole.run(None, {"pixels": np.asarray(picture)[None]})[0]
        np.testing.assert_allclose(found["y"][row], scores[0], atol=0.02)
        resized = np.asarray(picture.resize((12, 8), images.Resampling.BILINEAR), np.float32) / 255
        scores = network.run(None, {"x": resized.transpose(2, 0, 1)[None]})[0]
        np.testing.assert_allclose(found["y"][row], scores[0], atol=1e-5)
    run("new", "cnn", "--data", "data", "--size", 16, "--out", "fixed.onnx")
    run("artifacts", "fixed.onnx", "--loss", "cross_entropy", "--out", "fixed")
    said = run("train", "fixed", "--data", "data", "--size", 8, status=1)
    assert "--size: the model takes pictures of shape [3, 16, 16], found 8x8" in said.err
