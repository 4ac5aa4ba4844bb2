"""Errors about data from a file of lines name the line, which users can look up, with the header counted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

ROWS = [[f"{value:.2f}" for value in row] for row in np.random.default_rng(5).normal(size=(40, 16))]
CLASSES = [number % 3 for number in range(40)]


@pytest.fixture
def folder(artifacts, tmp_path, monkeypatch):
    """Artifacts for rows of 16 numbers of 3 classes, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path, rows, classes, header=True):
    names = [",".join([*(f"p{n}" for n in range(16)), "kind"])] if header else []
    lines = [",".join([*row, str(name)]) for row, name in zip(rows, classes, strict=True)]
    path.write_text("\n".join([*names, *lines]) + "\n", newline="\n")
    return path.name


def changed(rows, row, column, cell):
    return [
        [cell if (r, c) == (row, column) else old for c, old in enumerate(cells)]
        for r, cells in enumerate(rows)
    ]


def test_a_cell_that_is_no_number_is_named_with_its_line(run, folder):
    wrong = changed(ROWS, 7, 2, "oops")
    for header, line in ((True, 9), (False, 8)):
        data = write(folder / "wrong.csv", wrong, CLASSES, header)
        found = run("train", "artifacts", "--data", data, status=1).err
        assert f"expected numbers, as most of its cells are, found 'oops' in line {line}; leave" in found
        for end in ("\r\n", "\r"):
            (folder / "other.csv").write_bytes((folder / data).read_bytes().replace(b"\n", end.encode()))
            assert f"in line {line}; leave" in run("train", "artifacts", "--data", "other.csv", status=1).err
        found = run("train", "artifacts", "--data", data, "--no-preprocess", status=1).err
        assert f"expected numbers, found 'oops' in line {line}\n" in found


def test_lines_that_are_left_out_and_cells_of_several_lines_are_counted(run, folder):
    """A row without a target is left out, an empty line is no row, and a cell in quotes may have two lines."""
    names = ["one"] * 40
    names[0], names[1] = '"two\nlines"', ""
    data = write(folder / "wrong.csv", changed(ROWS, 7, 2, "oops"), names)
    text = (folder / "wrong.csv").read_text().replace(f"\n{ROWS[3][0]},", f"\n\n{ROWS[3][0]},")
    (folder / "wrong.csv").write_text(text)
    found = run("train", "artifacts", "--data", data, status=1).err
    line = next(number for number, line in enumerate(text.splitlines(), 1) if "oops" in line)
    assert line == 11
    assert f"found 'oops' in line {line}; leave" in found


def test_a_class_that_the_model_lacks_is_named_with_its_line(run, folder):
    good = write(folder / "good.csv", ROWS, CLASSES)
    classes = [*CLASSES[:9], 5, *CLASSES[10:]]
    wrong = write(folder / "wrong.csv", ROWS, classes)
    named = "input 'labels': expected numbers of classes from 0 to 2, found 5 in line 11 of wrong.csv. Labels"
    for command in ("train", "evaluate"):
        assert f"data: {named}" in run(command, "artifacts", "--data", wrong, status=1).err
    found = run("train", "artifacts", "--data", good, "--validation", wrong, status=1).err
    assert f"validation: {named}" in found
    half = write(folder / "half.csv", ROWS, [*CLASSES[:9], 1.5, *CLASSES[10:]])
    assert "with 1.5 in line 11 of half.csv" in run("train", "artifacts", "--data", half, status=1).err
    # the data of another command have other lines
    np.savez("wrong.npz", image=np.array(ROWS, np.float32), labels=classes)
    assert "found 5 in row 9 of the data" in run("train", "artifacts", "--data", "wrong.npz", status=1).err


def test_a_wrong_line_of_json_is_named(run, folder):
    rows = [
        {"x": [float(cell) for cell in row], "labels": name} for row, name in zip(ROWS, CLASSES, strict=True)
    ]
    rows[9]["labels"] = 5
    (folder / "wrong.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    found = run("train", "artifacts", "--data", "wrong.jsonl", status=1).err
    assert "found 5 in line 10 of wrong.jsonl. Labels" in found


def test_columns_without_a_target_are_named(run, folder):
    (folder / "few.csv").write_text(",".join(f"p{n}" for n in range(16)) + "\n" + ",".join(ROWS[0]) + "\n")
    found = run("train", "artifacts", "--data", "few.csv", status=1).err
    assert "few.csv has 16 columns (p0, p1, " in found
    assert "all of which input image takes: expected another column, the target" in found


def test_a_token_beyond_the_table_of_the_model_is_named(run, folder):
    rng = np.random.default_rng(0)
    make = onnx.helper
    weights = {"table": rng.normal(size=(8, 6)), "w": rng.normal(size=(6, 3))}
    graph = make.make_graph(
        [
            make.make_node("Gather", ["table", "ids"], ["rows"]),
            make.make_node("ReduceMean", ["rows"], ["mean"], axes=[1], keepdims=0),
            make.make_node("MatMul", ["mean", "w"], ["scores"]),
        ],
        "tokens",
        [make.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["batch", 5])],
        [make.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["batch", 3])],
        [onnx.numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8), "tokens.onnx")
    run("artifacts", "tokens.onnx", "--loss", "cross_entropy", "--out", "tokens")
    ids = rng.integers(0, 8, (40, 5))
    np.savez("good.npz", ids=ids, y=CLASSES)
    ids[11, 3], ids[20, 0] = 300, 9
    np.savez("wrong.npz", ids=ids, y=CLASSES)
    named = (
        "input 'ids': expected numbers from 0 to 7, found 300 in row 11 of the {} (element [3]), and 1 more row has such values; "
        "the table 'table' has 8 rows.\n"
    )
    for command in ("train", "evaluate"):
        found = run(command, "tokens", "--data", "wrong.npz", status=1).err
        assert f"ortrain: data: {named.format('data')}" in found
    found = run("train", "tokens", "--data", "good.npz", "--validation", "wrong.npz", status=1).err
    assert f"ortrain: validation: {named.format('validation data')}" in found


def test_classes_without_rows_are_said(run, folder):
    few = write(folder / "few.csv", ROWS, [number % 2 for number in range(40)])
    said = "ortrain: the model has scores for 3 classes, and few.csv has no rows of 1 of them: 2\n"
    assert said in run("train", "artifacts", "--data", few, "--no-preprocess").err
    assert said not in run("evaluate", "artifacts", "--data", few).err
    named = write(folder / "named.csv", ROWS, ["ant", *["bee"] * 39])
    assert said.replace("few", "named") in run("train", "artifacts", "--data", named, "--from-start").err
    all_classes = write(folder / "all.csv", ROWS, CLASSES)
    assert "no rows of" not in run("train", "artifacts", "--data", all_classes, "--from-start").err


def test_a_metric_of_more_scores_than_there_are_is_said(run, folder):
    data = write(folder / "data.csv", ROWS, CLASSES)
    ran = run("train", "artifacts", "--data", data, "--metrics", "top2,top3,top9", "--epochs", 2, "--json")
    for k in (3, 9):
        assert (
            f"ortrain: metric top{k}: the model has 3 classes, so each class is among the {k} with the largest scores and "
            "the value is always 1\n" in ran.err
        )
        assert ran.err.count(f"metric top{k}:") == 1
        assert ran.json["history"][f"top{k}"] == [1, 1]
    assert "metric top2:" not in ran.err
    assert ran.json["history"]["top2"][0] < 1


def test_a_folder_that_is_missing_is_named(run, folder):
    data = write(folder / "data.csv", ROWS, CLASSES)
    commands = (
        ("export", "artifacts", "none/m.onnx"),
        ("convert", "model.onnx", "none/m.ort"),
        ("convert", "artifacts/checkpoint", "none/c.npz"),
        ("predict", "artifacts", "--data", data, "--out", "none/p.csv"),
        ("predict", "artifacts", "--data", data, "--out", "none/p.npz"),
    )
    for command in commands:
        found = run(*command, status=1).err
        assert f"'{Path(command[-1])}': there is no folder 'none'\n" in found
        assert "hint" not in found
        found = run(*command[:-1], f"model.onnx/{command[-1][5:]}", status=1).err
        assert "': 'model.onnx' is not a folder\n" in found


def test_lists_in_json_lines_are_rows_of_a_network(run, tmp_path, monkeypatch):
    """Also without artifacts, and `inspect` shows their shapes."""
    monkeypatch.chdir(tmp_path)
    rows = [{"x": [float(cell) for cell in row], "y": name} for row, name in zip(ROWS, CLASSES, strict=True)]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    shown = run("inspect", "data.jsonl").out
    assert shown.startswith("data.jsonl: arrays with 40 rows\n  x: float64 [40, 16]\n  y: int64 [40]\n")
    assert "network mlp, loss cross_entropy" in shown
    made = run("train", "--data", "data.jsonl", "--json")
    assert "for the network mlp (16 numbers a row, 3 classes)" in made.err
    assert run("evaluate", "artifacts", "--data", "data.jsonl", "--json").json["loss"] > 0
    rows[4]["x"].pop()
    (tmp_path / "ragged.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    for command in (("inspect", "ragged.jsonl"), ("train", "artifacts", "--data", "ragged.jsonl")):
        found = run(*command, status=1).err
        assert "column x: expected rows of one shape, found 16 values in line 1 and 15 in line 5\n" in found
    (tmp_path / "broken.jsonl").write_text(json.dumps(rows[0]) + "\n" + '{"x": [1, ')
    found = run("inspect", "broken.jsonl", status=1).err
    assert "broken.jsonl line 2: expected a JSON object: Expecting value at column " in found


def test_arrays_of_a_model_with_several_inputs_are_described(run, tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, ids=np.zeros((6, 5), np.int64), mask=np.ones((6, 5), bool), y=np.arange(6))
    shown = run("inspect", path).out
    assert shown.startswith(
        f"{path}: arrays with 6 rows\n  ids: int64 [6, 5]\n  mask: bool [6, 5]\n  y: int64 [6]\nnote "
    )
    assert "network" not in shown
    assert run("inspect", path, "--json").json["arrays"]["mask"] == {"dtype": "bool", "shape": [6, 5]}


def test_arrays_that_are_missing_are_named(run, folder):
    np.savez("data.npz", picture=np.array(ROWS, np.float32), y=CLASSES)
    found = run("train", "artifacts", "--data", "data.npz", status=1).err
    assert (
        "expected arrays named image, labels, or x and y, in data.npz, found picture, y: image is missing\n"
        in found
    )
