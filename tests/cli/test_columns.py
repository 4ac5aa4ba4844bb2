"""The columns of tables are found by their names, and a file without names is recognized."""

from __future__ import annotations

import json

import numpy as np
import pytest
from test_data_of_newcomers import dense, write_csv

NAMES = ["length", "width", "height", "weight"]


@pytest.fixture
def trained(tmp_path, run):
    """Artifacts trained on a table with the target in the middle, the rows of the table and their classes."""
    run("artifacts", dense(tmp_path / "c.onnx", 4, 3), "--loss", "cross_entropy", "--out", tmp_path / "c")
    rows = np.random.default_rng(2).normal(size=(60, 4))
    classes = rows[:, :3].argmax(axis=1)
    table = [[*row[:2], f"k{number}", *row[2:]] for row, number in zip(rows.tolist(), classes, strict=True)]
    path = write_csv(tmp_path / "t.csv", [*NAMES[:2], "kind", *NAMES[2:]], table)
    run("train", tmp_path / "c", "--data", path, "--target", "kind", "--epochs", 20, "--lr", 0.1)
    return tmp_path / "c", path, rows, [f"k{number}" for number in classes]


def permuted(path, rows, kinds, target="kind"):
    order = [3, 1, 0, 2]
    table = [[kind, *row] for row, kind in zip(rows[:, order].tolist(), kinds, strict=True)]
    return write_csv(path, [target, *(NAMES[i] for i in order)], table)


def test_permuted_columns_give_the_same_result(trained, run, tmp_path):
    artifacts, table, rows, kinds = trained
    other = permuted(tmp_path / "p.csv", rows, kinds)
    expected = run("evaluate", artifacts, "--data", table, "--metric", "accuracy", "--json").json
    assert expected["accuracy"] > 0.9
    assert run("evaluate", artifacts, "--data", other, "--metric", "accuracy", "--json").json == expected
    renamed = permuted(tmp_path / "r.csv", rows, kinds, "species")
    assert (
        run(
            "evaluate", artifacts, "--data", renamed, "--target", "species", "--metric", "accuracy", "--json"
        ).json
        == expected
    )
    scores = run("predict", artifacts, "--data", table, "--json").json["scores"]
    assert run("predict", artifacts, "--data", other, "--json").json["scores"] == scores
    lines = [json.dumps(dict(zip(NAMES, row, strict=True))) for row in rows.tolist()]
    (tmp_path / "without.jsonl").write_text("\n".join(lines))
    assert run("predict", artifacts, "--data", tmp_path / "without.jsonl", "--json").json["scores"] == scores
    again = run("train", artifacts, "--data", table, "--validation", other, "--lr", 1e-9, "--json").json
    assert again["history"]["val_loss"][0] == pytest.approx(expected["loss"], rel=1e-4)


def test_missing_and_unknown_columns_are_errors(trained, run, tmp_path):
    artifacts, _, rows, _ = trained
    fewer = write_csv(tmp_path / "f.csv", [*NAMES[:3], "hight"], rows.tolist())
    for command in ("predict", "evaluate", "train"):
        said = run(command, artifacts, "--data", fewer, status=1).err
        assert "weight is missing and hight is unknown" in said
    more = write_csv(
        tmp_path / "m.csv", ["id", *NAMES], [[number, *row] for number, row in enumerate(rows.tolist())]
    )
    said = run("predict", artifacts, "--data", more, status=1).err
    assert (
        "expected the columns that the model was trained on, length, width, height, weight, in any order; id is unknown"
        in said
    )
    unlabeled = write_csv(tmp_path / "u.csv", NAMES, rows.tolist())
    said = run("evaluate", artifacts, "--data", unlabeled, status=1).err
    assert "has no column kind, which is the target" in said


def test_a_file_without_a_header_has_all_its_rows(trained, run, tmp_path):
    artifacts, _, rows, kinds = trained
    scores = run("predict", artifacts, "--data", trained[1], "--json").json["scores"]
    (tmp_path / "n.csv").write_text("\n".join(",".join(map(repr, row)) for row in rows.tolist()))
    found = run("predict", artifacts, "--data", tmp_path / "n.csv", "--json")
    np.testing.assert_allclose(found.json["scores"], scores, rtol=1e-6)
    assert (
        "n.csv has no header: its columns are taken by position, in the order length, width, height, weight"
        in found.err
    )
    labeled = "\n".join(
        ",".join([*map(repr, row), kind]) for row, kind in zip(rows.tolist(), kinds, strict=True)
    )
    (tmp_path / "l.csv").write_text(labeled)
    said = run("evaluate", artifacts, "--data", tmp_path / "l.csv", "--metric", "accuracy", "--json")
    assert said.json["accuracy"] > 0.9
    assert "l.csv has no header" in said.err
    forced = run("predict", artifacts, "--data", tmp_path / "n.csv", "--no-header", "--json")
    assert forced.json["scores"] == found.json["scores"]
    assert "no header" not in forced.err


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ("a,b,c\n1,2,3\n", ["a", "b", "c"]),
        ("a, b\n1, 2\n", ["a", "b"]),
        ("\ufeffa,b\n1,2\n", ["a", "b"]),
        ("0,1,kind\n5,6,dog\n", ["0", "1", "kind"]),
        ("0,1,2,3,4,5,6,7\n5,6,7,8,9,1,2,3\n", [*"01234567"]),
        ("5.1,3.5,setosa\n4.9,3.0,setosa\n", None),
        ("1,2\n3,\n5,6\n", None),
        ("7,8\n", None),
        ("0,1\n1,3\n2,5\n", "may be the names of the columns or the first row: 0,1"),
        ("name,2019,2020\n1,2,3\n", "--header or --no-header says which"),
        ("a,b,a\n1,2,3\n", "found 'a' twice"),
    ],
)
def test_a_header_is_recognized(lines, names, tmp_path):
    from ortrain.cli.tables import read_table

    (tmp_path / "t.csv").write_text(lines, "utf-8")
    if isinstance(names, str):
        with pytest.raises(ValueError, match=names):
            read_table(tmp_path / "t.csv")
        return
    table = read_table(tmp_path / "t.csv")
    rows = lines.count("\n")
    assert table.has_names == (names is not None)
    assert list(table.columns) == (names or [f"column {i + 1}" for i in range(len(table.columns))])
    assert len(next(iter(table.columns.values()))) == (rows if names is None else rows - 1)


def test_one_cell_that_is_no_number_does_not_turn_a_column_into_categories(run, tmp_path, monkeypatch):
    """Also with fewer different numbers than a column may have categories; codes beside a text are categories."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{n % 30},{n % 3 or 'other'},{'ab'[n % 2]}" for n in range(150)]
    (tmp_path / "t.csv").write_text("\n".join(["size,code,kind", *rows]) + "\n")
    assert "size (number); code (3 categories: 1, 2, other)" in run("train", "--data", "t.csv").err
    rows[7] = "inf,1,a"
    (tmp_path / "wrong.csv").write_text("\n".join(["size,code,kind", *rows]) + "\n")
    expected = "column size: expected numbers, as most of its cells are, found 'inf' in line 9;"
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert expected in run("train", "--data", "../wrong.csv", status=1).err


def test_cells_that_are_missing_only_in_later_data_are_said(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [f"{n},{n * n % 7},{'ab'[n % 2]}" for n in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["size,width,kind", *rows]) + "\n")
    assert "missing" not in run("train", "--data", "t.csv").err
    rows[3], rows[4], rows[5] = ",3,a", ",4,b", "5,,a"
    (tmp_path / "later.csv").write_text("\n".join(["size,width,kind", *rows]) + "\n")
    for command in ("evaluate", "predict", "train"):
        said = run(command, "artifacts", "--data", "later.csv").err
        assert (
            "later.csv: 2 cells of the column size are missing, none was in training; they count as the mean\n"
            in said
        )
        assert (
            "later.csv: 1 cell of the column width is missing, none was in training; it counts as the mean\n"
            in said
        )
