"""Tables as spreadsheets write them: separators, decimals, encodings, ends of lines. What is wrong in them, and in folders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from system import limits_files

RNG = np.random.default_rng(6)
ROWS = [
    [f"{x:.3f}", f"{1000 * y:.2f}", ("rot", "grün")[int(x > 0)]] for x, y in RNG.normal(size=(40, 2)).tolist()
]
HEAD = ["größe", "高さ", "art"]


def table(separator=",", end="\n", encoding="utf-8", decimals=".", head=HEAD, quoted=False) -> bytes:
    """The rows as a file."""
    rows = [[cell.replace(".", decimals) for cell in row[:2]] + row[2:] for row in ROWS]
    cells = [[f'"{cell}"' for cell in row] if quoted else row for row in ([head, *rows] if head else rows)]
    return end.join([*(separator.join(row) for row in cells), ""]).encode(encoding)


FORMS = {
    "byte order mark": table(encoding="utf-8-sig"),
    "lines of Windows": table(end="\r\n"),
    "lines of old Macs": table(end="\r"),
    "semicolons": table(";"),
    "semicolons, decimal commas, all of Windows": table(";", "\r\n", "utf-8-sig", ","),
    "quotes and decimal commas": table(";", decimals=",", quoted=True),
    "tabs": table("\t", decimals=","),
    "vertical bars": table("|"),
    "no header": table(";", decimals=",", head=None),
}


@pytest.fixture
def expected(run, tmp_path, monkeypatch):
    """The losses of the table with commas."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_bytes(table())
    return run("train", "--data", "t.csv", "--epochs", 2, "--json").json["history"]["loss"]


def test_a_table_of_any_form_is_the_same_table(run, expected, tmp_path, monkeypatch):
    for number, (form, content) in enumerate(FORMS.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        (folder / "t.csv").write_bytes(content)
        options = ["--preprocess"] if form == "no header" else []
        if form == "no header":  # read by position, with the names of the training
            monkeypatch.chdir(tmp_path)
            found = run("evaluate", "artifacts", "--data", folder / "t.csv", "--json")
            assert found.json == run("evaluate", "artifacts", "--data", "t.csv", "--json").json, form
            continue
        found = run("train", "--data", "t.csv", "--epochs", 2, "--json", *options)
        assert found.json["history"]["loss"] == expected, form
        said = "t.csv has semicolons between its cells and commas before decimals"
        assert (said in found.err) == ("decimal commas" in form), found.err


def test_a_table_without_a_header_is_preprocessed_too(run, expected, tmp_path, monkeypatch):
    folder = tmp_path / "bare"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "t.csv").write_bytes(table(head=None))
    assert run("train", "--data", "t.csv", "--epochs", 2, "--json").json["history"]["loss"] == expected
    again = run("train", "artifacts", "--data", "t.csv", "--json").json["history"]["loss"][0]
    assert again < expected[-1]
    (folder / "new.csv").write_text("\n".join(",".join(row[:2]) for row in ROWS))
    found = run("predict", "artifacts", "--data", "new.csv", "--json").json
    assert found == run("predict", "artifacts", "--data", "t.csv", "--json").json

    rows = [f"{number % 7},n{number},{'red' if number % 2 else ''},{number % 3}" for number in range(70)]
    (folder / "mixed.csv").write_text("\n".join(rows))
    options = ("--no-header", "--data", "mixed.csv")
    run("new", "mlp", *options)
    run("artifacts", "model.onnx", "--loss", "cross_entropy", "--out", "mixed")
    said = run("train", "mixed", *options).err
    assert "column 3 (2 categories: missing, red)" in said
    assert "the column column 2 is left out" in said
    run("evaluate", "mixed", *options)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        (
            "a,b,y\n1;2,x,0\n3;4,y,1\n",
            "a: 2 categories: 1;2, 3;4",
        ),  # semicolons in cells of a table with commas
        ("a;b;y\n1,5;Meier, Anna;0\n2,5;Meier, Anna;1\n", "b: 1 category: Meier, Anna"),
        ("a;b;y\n1.000,5;1.5;0\n2;2,5;1\n", "a: number"),  # b has both forms, and stays text
    ],
)
def test_commas_within_cells(run, tmp_path, text, columns):
    (tmp_path / "t.csv").write_text(text)
    assert columns in run("inspect", tmp_path / "t.csv", "--target", "y").out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected rows in t.csv, found an empty file"),
        (b"a,b,y\n", "expected rows in t.csv, found names of columns only"),
        (b"a,y\n1,cat\n2,cat\n", "which is the target, found 'cat' in all 2 rows; --target names another"),
        (table(encoding="latin-1", head=["größe", "h", "art"]), "line 1: expected UTF-8, found byte 0xf6"),
        (table(encoding="utf-16", head=["a", "b", "art"]), "save the file as UTF-8"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_and_nothing_is_left(run, tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_bytes(content)
    assert message in run("train", "--data", "t.csv", status=1).err
    assert os.listdir(tmp_path) == ["t.csv"]


def test_artifacts_of_a_first_run_that_fails_are_not_left_for_other_data(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("a,b,y\n1,2,x\n2,3,y\n")
    found = run("train", "--data", "t.csv", "--validation", "0.2", status=1)
    assert "a share of 0.2 of 2 rows leaves no row on one side" in found.err
    assert os.listdir(tmp_path) == ["t.csv"]


def test_one_class_in_further_training_is_said(run, expected, tmp_path):
    (tmp_path / "one.csv").write_bytes(table()[: len(",".join(HEAD).encode()) + 1] + b"1.0,2.0,rot\n" * 3)
    found = run("train", "artifacts", "--data", "one.csv")
    assert "all rows of one.csv have the class rot: expected at least two classes to learn from" in found.err
    assert "no other one" not in run("evaluate", "artifacts", "--data", "one.csv").err


def test_a_picture_that_is_none_is_named(run, tmp_path, monkeypatch):
    images = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(4):
            pixels = RNG.integers(0, 256, (9, 9, 3), np.uint8)
            images.fromarray(pixels).save(tmp_path / f"pictures/{name}/{number}.png")
    broken = tmp_path / "pictures/b/2.png"
    whole = broken.read_bytes()
    for content, why in (
        (whole[:90], "truncated"),
        (b"hello", "does not recognize; replace or"),
        (b"", "does"),
    ):
        broken.write_bytes(content)
        found = run("train", "--data", "pictures", status=1)
        assert f"expected an image, found {Path('pictures/b/2.png')}" in found.err
        assert why in found.err
        assert "BufferedReader" not in found.err
    broken.unlink()
    (tmp_path / "pictures/a").rename(tmp_path / "apart")
    found = run("train", "--data", "pictures", status=1)
    assert "expected two folders of images or more in pictures, one for each class, found only b" in found.err


def test_a_log_that_does_not_fit_is_named(expected, tmp_path):
    ran = subprocess.run(
        [sys.executable, "-m", "ortrain", "train", "artifacts", "--data", "t.csv", "--epochs", "3"],
        preexec_fn=limits_files(600),
        capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert ran.returncode == 1
    assert "cannot write the log 'artifacts/runs/2/log.jsonl': File too large" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.thorough
def test_a_run_that_fills_the_disk_says_how_to_complete_it(run, expected, tmp_path):
    command = [sys.executable, "-m", "ortrain", "train", "artifacts", "--data", "t.csv", "--epochs", "300"]
    ran = subprocess.run(
        command,
        preexec_fn=limits_files(60_000),
        capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert ran.returncode == 1
    assert "File too large" in ran.stderr
    assert "the same command with --resume artifacts/last.ckpt completes it" in ran.stderr
    assert (
        "is finished" in run("train", "artifacts", "--data", "t.csv", "--resume", "artifacts/last.ckpt").err
    )


@pytest.mark.parametrize(
    ("command", "folder", "what"),
    [
        (["train", "artifacts", "--data", "t.csv", "--out", "file/runs"], "file/runs/1", "run"),
        (["demo", "--out", "file/demo"], "file/demo", "demo"),
        (
            ["artifacts", "artifacts/model.onnx", "--loss", "mse", "--out", "file/a"],
            "file/a",
            "artifacts",
        ),
    ],
)
def test_a_folder_that_cannot_be_made_is_named(run, expected, tmp_path, command, folder, what):
    (tmp_path / "file").write_text("not a folder")
    found = run(*command, status=1)
    assert f"cannot create the folder '{Path(folder)}' for the {what}: Not a directory" in found.err
