"""Data as people have them: classes by name, targets of one number, the names x and y, pictures with channels last."""

from __future__ import annotations

import csv
import json

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain.api import CheckpointState

KINDS = ["circle", "square", "triangle"]


def dense(path, features, outputs, shape=None, name="x"):
    """A model from rows of a shape to some numbers."""
    rng = np.random.default_rng(4)
    weight = (rng.normal(size=(features, outputs)) / features).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Flatten", [name], ["flat"]), helper.make_node("Gemm", ["flat", "w", "b"], ["scores"])],
        "dense",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", *(shape or [features])])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", outputs])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.zeros(outputs, np.float32), "b")],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def write_csv(path, heading, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(heading)
        writer.writerows(rows)
    return path


@pytest.fixture
def classifier(tmp_path, run):
    run("artifacts", dense(tmp_path / "c.onnx", 4, 3), "--loss", "cross_entropy", "--out", tmp_path / "c")
    return tmp_path / "c"


@pytest.fixture
def flowers():
    """Rows of four numbers whose class is the largest of the first three."""
    rows = np.random.default_rng(2).normal(size=(90, 4))
    return rows, rows[:, :3].argmax(axis=1)


def test_classes_by_name_in_a_table(classifier, flowers, run, tmp_path):
    rows, numbers = flowers
    heading = ["a", "b", "c", "d", "kind"]
    named = [[*row, KINDS[number]] for row, number in zip(rows.tolist(), numbers, strict=True)]
    table = write_csv(tmp_path / "t.csv", heading, named)
    options = ["--epochs", 40, "--lr", 0.1, "--metric", "accuracy"]
    assert run("train", classifier, "--data", table, *options, "--json").json["history"]["accuracy"][-1] > 0.9
    state = CheckpointState.load_checkpoint(classifier / "best.ckpt")
    assert json.loads(str(state.properties["ortrain.classes"])) == KINDS

    # The same rows with the classes' numbers, in the order of their names.
    counted = write_csv(
        tmp_path / "n.csv", heading, [[*row, n] for row, n in zip(rows, numbers, strict=True)]
    )
    asked = ["--metric", "confusion_matrix", "--json"]
    expected = run("evaluate", classifier, "--data", counted, *asked).json
    assert run("evaluate", classifier, "--data", table, *asked).json == expected
    lines = [json.dumps(dict(zip(heading, row, strict=True))) for row in named]
    (tmp_path / "t.jsonl").write_text("\n".join(lines), "utf-8")
    assert run("evaluate", classifier, "--data", tmp_path / "t.jsonl", *asked).json == expected

    # A part of the data that lacks the first class, and so would give the others wrong numbers.
    rest = write_csv(tmp_path / "rest.csv", heading, [row for row in named if row[-1] != "circle"])
    matrix = np.array(run("evaluate", classifier, "--data", rest, *asked).json["confusion_matrix"])
    np.testing.assert_array_equal(matrix, [[0, 0, 0], *expected["confusion_matrix"][1:]])
    shown = run("evaluate", classifier, "--data", rest, "--metric", "confusion_matrix").out.splitlines()
    assert shown[-4].split() == KINDS
    assert shown[-1].split() == ["triangle", *map(str, matrix[2])]
    assert not any("." in line for line in shown[-3:])  # numbers of rows
    read = run("predict", classifier, "--data", table, "--json").json
    assert read["predicted"] == [KINDS[scores.argmax()] for scores in np.array(read["scores"])]
    printed = run("predict", classifier, "--data", table).out.splitlines()
    assert [line.split()[-1] for line in printed] == read["predicted"]

    new = write_csv(tmp_path / "new.csv", heading, [[*rows[0], "hexagon"]])
    assert (
        "class hexagon, which the model was not trained on"
        in run("evaluate", classifier, "--data", new, status=1).err
    )


def test_a_resumed_run_keeps_the_numbers_of_its_classes(classifier, flowers, run, tmp_path):
    rows, numbers = flowers
    heading = ["a", "b", "c", "d", "kind"]
    named = [[*row, KINDS[number]] for row, number in zip(rows, numbers, strict=True)]
    table = write_csv(tmp_path / "t.csv", heading, named)
    run("train", classifier, "--data", table)
    other = [[*row[:-1], "triangle"] if row[-1] == "circle" else row for row in named]
    table = write_csv(tmp_path / "t.csv", heading, other)
    run("train", classifier, "--data", table, "--epochs", 2, "--resume", classifier / "last.ckpt")
    state = CheckpointState.load_checkpoint(classifier / "last.ckpt")
    assert json.loads(str(state.properties["ortrain.classes"])) == KINDS


def test_a_folder_of_pictures_that_lacks_a_class(classifier, run, tmp_path):
    images = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(7)
    for kind in KINDS:
        for split, count in (("all", 12), ("two", 5)):
            for number in range(count if split == "all" or kind != "circle" else 0):
                path = tmp_path / split / kind / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                images.fromarray(rng.integers(0, 256, (3, 5, 3), np.uint8)).save(path)
    (tmp_path / "all/.thumbnails").mkdir()
    images.new("RGB", (2, 2)).save(tmp_path / "all/.thumbnails/0.png")
    (tmp_path / "all/notes.txt").write_text("not a class")
    run(
        "artifacts",
        dense(tmp_path / "i.onnx", 45, 3, [3, 3, 5]),
        "--loss",
        "cross_entropy",
        "--out",
        tmp_path / "i",
    )
    run("train", tmp_path / "i", "--data", tmp_path / "all", "--validation", tmp_path / "two")
    found = run(
        "evaluate", tmp_path / "i", "--data", tmp_path / "two", "--metric", "confusion_matrix", "--json"
    ).json
    assert np.sum(found["confusion_matrix"], axis=1).tolist() == [0, 5, 5]
    assert found["classes"] == KINDS

    for path in (tmp_path / "two/square").iterdir():  # pictures that nobody has sorted
        path.rename(tmp_path / path.name)
    (tmp_path / "two/square").rmdir()
    (tmp_path / "new").mkdir()
    for path in tmp_path.glob("*.png"):
        path.rename(tmp_path / "new" / path.name)
    expected = run("predict", tmp_path / "i", "--data", tmp_path / "new", "--json").json
    pixels = [
        np.asarray(images.open(tmp_path / f"new/{number}.png"), np.float32) / 255 for number in range(5)
    ]
    np.savez(tmp_path / "new.npz", x=np.stack(pixels).transpose(0, 3, 1, 2))
    found = run("predict", tmp_path / "i", "--data", tmp_path / "new.npz", "--json").json
    np.testing.assert_allclose(expected["scores"], found["scores"], rtol=1e-5)

    # Each row is printed with its file; data from other sources have none.
    names = [f"{number}.png" for number in range(5)]
    assert expected["files"] == names
    assert "files" not in found
    printed = run("predict", tmp_path / "i", "--data", tmp_path / "new").out.splitlines()
    assert [(line.split()[0], line.split()[-1]) for line in printed] == list(
        zip(names, expected["predicted"], strict=True)
    )
    sorted_ones = run("predict", tmp_path / "i", "--data", tmp_path / "two", "--target", "labels").out
    assert [line.split()[0] for line in sorted_ones.splitlines()] == [f"triangle/{name}" for name in names]


def test_pictures_with_channels_last(run, tmp_path):
    images = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(5).integers(0, 256, (2, 3, 4, 3), np.uint8)
    for number, image in enumerate(pixels):
        (tmp_path / f"d/{number}").mkdir(parents=True)
        images.fromarray(image).save(tmp_path / f"d/{number}/0.png")
    last = dense(tmp_path / "last.onnx", 60, 2, [5, 4, 3], "image")
    run("artifacts", last, "--loss", "cross_entropy", "--out", tmp_path / "b")
    found = run("predict", tmp_path / "b", "--data", tmp_path / "d", "--json").json["scores"]
    resized = [
        np.asarray(images.fromarray(image).resize((4, 5), images.Resampling.BILINEAR), np.float32) / 255
        for image in pixels
    ]
    np.savez(tmp_path / "last.npz", image=np.stack(resized))
    expected = run("predict", tmp_path / "b", "--data", tmp_path / "last.npz", "--json").json["scores"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ["csv", "npz", "jsonl"])
def test_a_target_of_one_number(kind, run, tmp_path):
    """The model returns [n, 1], and the data have a number per row."""
    run("artifacts", dense(tmp_path / "r.onnx", 4, 1), "--loss", "mse", "--out", tmp_path / "r")
    rows = np.random.default_rng(3).normal(size=(40, 4)).astype(np.float32)
    values = rows @ np.array([1.0, -2.0, 0.5, 0.0], np.float32)
    np.savez(tmp_path / "exact.npz", x=rows, target=values[:, None])
    expected = run("evaluate", tmp_path / "r", "--data", tmp_path / "exact.npz", "--json").json["loss"]
    path = tmp_path / f"d.{kind}"
    if kind == "csv":
        write_csv(path, [*"abcd", "value"], np.column_stack([rows, values]).tolist())
    elif kind == "npz":
        np.savez(path, x=rows, y=values)
    else:
        lines = [{"x": row, "y": value} for row, value in zip(rows.tolist(), values.tolist(), strict=True)]
        path.write_text("\n".join(map(json.dumps, lines)))
    found = run("evaluate", tmp_path / "r", "--data", path, "--json").json["loss"]
    assert found == pytest.approx(expected, rel=1e-6)
    run("train", tmp_path / "r", "--data", path, "--metric", "mae")
    words = write_csv(tmp_path / "w.csv", [*"abcd", "value"], [[1, 2, 3, 4, "much"]])
    assert (
        "column value: expected numbers, found 'much'"
        in run("evaluate", tmp_path / "r", "--data", words, status=1).err
    )


def test_a_classifier_of_scikit_learn(flowers, run, tmp_path, caplog):
    """Its first output is the class that it reads, and its scores are not an output."""
    networks, convert = pytest.importorskip("sklearn.neural_network"), pytest.importorskip("skl2onnx")
    rows, numbers = flowers
    network = networks.MLPClassifier((8,), max_iter=1).fit(rows, numbers)
    model = convert.to_onnx(network, rows[:1].astype(np.float32), options={"zipmap": False})
    onnx.save(model, tmp_path / "m.onnx")
    assert run("compat", tmp_path / "m.onnx", "--json").json["trains"]
    made = ["artifacts", tmp_path / "m.onnx", "--loss", "cross_entropy", "--out", tmp_path / "a"]
    refused = run(*made, status=1).err
    assert "'label', has no floating-point numbers" in refused
    assert "--output, Trainer(output=...)), such as the output 'probabilities'\n" in refused
    run(*made, "--output", "probabilities")
    (scores,) = [node.input[0] for node in model.graph.node if node.op_type == "Softmax"]
    assert f"The scores before it are '{scores}'" in caplog.text
    caplog.clear()
    run(*made, "--output", scores)
    assert caplog.text == ""
    np.savez(tmp_path / "d.npz", x=rows, y=numbers)
    options = ["--epochs", 40, "--lr", 0.05, "--metric", "accuracy", "--json"]
    history = run("train", tmp_path / "a", "--data", tmp_path / "d.npz", *options).json["history"]
    assert history["accuracy"][-1] > 0.9
    expected = run(
        "evaluate", tmp_path / "a", "--data", tmp_path / "d.npz", "--metric", "accuracy", "--json"
    ).json
    run("export", tmp_path / "a", tmp_path / "trained.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx")
    feed = {session.get_inputs()[0].name: rows.astype(np.float32)}
    found, labels = session.run([scores, "label"], feed)
    assert expected["accuracy"] == pytest.approx((found.argmax(axis=1) == numbers).mean())
    np.testing.assert_array_equal(labels, found.argmax(axis=1))
    assert "no value named 'nonsense'" in run(*made, "--output", "nonsense", status=1).err
    made[3] = "none"
    assert (
        "--output names the value that a loss is computed from"
        in run(*made, "--output", scores, status=2).err
    )


def test_predictions_need_no_target_and_take_one(classifier, flowers, run, tmp_path):
    rows, numbers = flowers
    without = write_csv(tmp_path / "without.csv", [*"abcd"], rows.tolist())
    expected = run("predict", classifier, "--data", without, "--json").json
    with_target = np.column_stack([rows, numbers]).tolist()
    table = write_csv(tmp_path / "with.csv", [*"abcd", "kind"], with_target)
    assert run("predict", classifier, "--data", table, "--json").json == expected
