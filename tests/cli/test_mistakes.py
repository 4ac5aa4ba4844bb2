"""What the command says to frequent mistakes, and which of them it puts right."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from conftest import network
from ortrain.cli.app import names_a_folder

PIXELS = np.random.default_rng(4).integers(0, 256, (30, 1, 4, 4)).astype(np.uint8)
LABELS = np.arange(30) % 3


@pytest.fixture
def folder(tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(network(), "model.onnx")
    run("artifacts", "model.onnx", "--loss", "cross_entropy")
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("trian", "there is no command 'trian' (did you mean 'train'?)"),
        ("evalute", "(did you mean 'evaluate'?)"),
        ("Train", "(did you mean 'train'?)"),
        ("xyz", "there is no command 'xyz'; commands are alias, artifacts, "),
    ],
)
def test_a_mistyped_command_is_named(run, typed, message):
    assert message in run(typed, "artifacts", status=2).err


def test_a_parameter_to_freeze_that_is_not_there_is_named(run, folder):
    found = run("artifacts", "model.onnx", "--loss", "cross_entropy", "--freeze", "W", status=1)
    assert "no initializer named 'W' (did you mean 'w'?); it has 2: w, b" in found.err


def test_a_model_is_not_a_folder_of_artifacts(run, folder):
    np.savez("data.npz", x=PIXELS / np.float32(255), y=LABELS)
    for command in ("train", "evaluate", "predict"):
        found = run(command, "model.onnx", "--data", "data.npz", status=1)
        assert "expected a folder of training artifacts, found the file model.onnx" in found.err
        assert "ortrain artifacts model.onnx --loss LOSS" in found.err
        assert "there is no folder artefacts" in run(command, "artefacts", "--data", "data.npz", status=1).err
        found = run(command, "data.npz", "--data", "data.npz", status=1)
        assert "found the file data.npz; --data names data\n" in found.err
    assert "found the file model.onnx" in run("profile", "model.onnx", status=1).err


def test_a_folder_of_artifacts_is_not_a_model(run, folder):
    for command in (
        ("artifacts", "artifacts", "--loss", "mse"),
        ("quantize", "artifacts"),
        ("compat", "artifacts"),
    ):
        found = run(*command, status=1).err
        assert (
            "expected a model, found 'artifacts', a folder of training artifacts; `ortrain export artifacts MODEL`"
            in found
        )


def test_a_wrong_setting_is_not_blamed_on_the_trained_parameters(run, folder):
    np.savez("data.npz", x=PIXELS / np.float32(255), y=LABELS)
    run("train", "artifacts", "--data", "data.npz")
    for option in (("--metric", "accurcy"), ("--threads", -3)):
        said = run("train", "artifacts", "--data", "data.npz", *option, status=1).err
        assert "was to continue" not in said


def test_both_slashes_end_a_folder_on_windows(monkeypatch):
    monkeypatch.setattr("os.sep", "\\")
    monkeypatch.setattr("os.altsep", "/")
    assert names_a_folder("out/")
    assert names_a_folder("out\\")
    assert not names_a_folder("out")


def test_a_warning_is_a_line_of_the_command(run, folder):
    pytest.importorskip("dp_accounting")
    np.savez("data.npz", x=PIXELS / np.float32(255), y=LABELS)
    options = ("--private", "--delta", 0.1, "--batch", 8)
    lines = run("train", "artifacts", "--data", "data.npz", *options).err.splitlines()
    assert any(line.startswith("ortrain: privacy: expected a delta well below 1 / 30") for line in lines)
    assert not any("UserWarning" in line for line in lines)


@pytest.mark.parametrize("command", ["dashboard", "studio"])
def test_a_file_is_not_a_folder_of_runs(command, run, folder):
    said = run(command, "model.onnx", status=1).err
    assert f"{command}: expected a folder, found the file model.onnx" in said
    assert f"{command}: there is no folder nowhere" in run(command, "nowhere", status=1).err


def test_bytes_of_images_have_the_scale_of_image_files(run, folder):
    np.savez("bytes.npz", x=PIXELS, y=LABELS)
    np.savez("numbers.npz", x=PIXELS / np.float32(255), y=LABELS)
    from_bytes = run("evaluate", "artifacts", "--data", "bytes.npz", "--json")
    assert "the bytes of image are divided by 255" in from_bytes.err
    from_numbers = run("evaluate", "artifacts", "--data", "numbers.npz", "--json")
    assert from_bytes.json == from_numbers.json
    assert "bytes" not in from_numbers.err
    np.save("new.npy", PIXELS)
    np.savez("new.npz", x=PIXELS / np.float32(255))
    assert (
        run("predict", "artifacts", "--data", "new.npy").out
        == run("predict", "artifacts", "--data", "new.npz").out
    )
    np.savez("flat.npz", x=PIXELS.reshape(30, 16), y=LABELS)
    assert (
        "the bytes of image are not scaled; the largest is 2"
        in run("train", "artifacts", "--data", "flat.npz").err
    )


def test_images_of_another_size_are_named(run, folder):
    np.savez("data.npz", x=np.zeros((30, 5, 5, 1), np.float32), y=LABELS)
    found = run("train", "artifacts", "--data", "data.npz", status=1)
    assert "expected float32 [batch, 1, 4, 4], found the shape (30, 5, 5, 1)" in found.err


def test_labels_out_of_range_and_missing_numbers_are_named_with_their_row(run, folder):
    x = PIXELS / np.float32(255)
    np.savez("range.npz", x=x, y=LABELS + 1)
    found = run("train", "artifacts", "--data", "range.npz", status=1)
    assert (
        "numbers of classes from 0 to 2, found 3 in row 2 of the data, and 9 more rows have it" in found.err
    )
    x[17, 0, 2, 3] = np.nan
    np.savez("nan.npz", x=x, y=LABELS)
    found = run("train", "artifacts", "--data", "nan.npz", status=1)
    assert "input 'image' has NaN in row 17 of the data (element [0, 2, 3])" in found.err
    rows = ["a,b,y", "1,2,3", "4,,6"]
    (folder / "hole.csv").write_text("\n".join(rows))
    found = run("train", "artifacts", "--data", "hole.csv", status=1)
    assert (
        "takes 16 numbers per row; the columns of hole.csv become 3: a (number); b (number, some missing); b has no value in "
        "line 3; `ortrain new`" in (found.err)
    )
    found = run("train", "artifacts", "--data", "hole.csv", "--no-preprocess", status=1)
    assert "column b: expected numbers, found '' in line 3\n" in found.err


def test_one_hot_labels_and_columns_of_labels_are_accepted(run, folder):
    x = PIXELS / np.float32(255)
    for number, labels in enumerate((LABELS, LABELS[:, None], np.eye(3)[LABELS])):
        np.savez(f"{number}.npz", x=x, y=labels)
    results = [run("evaluate", "artifacts", "--data", f"{number}.npz", "--json").json for number in range(3)]
    assert results[1:] == results[:1] * 2


def test_a_learning_rate_that_is_too_high_is_named(run, folder):
    onnx.save(network(), "model.onnx")
    run("artifacts", "model.onnx", "--loss", "mse", "--optimizer", "sgd", "--out", "mse")
    np.savez("data.npz", image=PIXELS / np.float32(255), target=np.eye(3, dtype=np.float32)[LABELS])
    found = run("train", "mse", "--data", "data.npz", "--lr", "1e30", "--epochs", "20", status=1)
    assert "the training diverges" in found.err
    assert "lower learning rate than 1e+30" in found.err


def test_other_data_for_validation_that_is_missing_is_named_by_its_option(run, folder):
    np.savez("data.npz", x=PIXELS / np.float32(255), y=LABELS)
    found = run("train", "artifacts", "--data", "data.npz", "--validation", "test.npz", status=1).err
    assert found == "ortrain: --validation: there is no file or folder test.npz\nhint: check the path\n"
    found = run("train", "artifacts", "--data", "train.csv", status=1).err
    assert found == "ortrain: --data: there is no file or folder train.csv\nhint: check the path\n"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--lr", "fast"), "'fast' is not a valid number."),
        (("--epochs", "2.5"), "'2.5' is not a valid integer."),
        (("--epochs", "0"), "0 is not in the range x>=1."),
    ],
)
def test_a_wrong_number_is_not_called_a_range_of_numbers(run, option, message):
    assert message in run("train", "artifacts", "--data", "data.npz", *option, status=2).err


def test_weights_that_are_quantized_already_are_named(run, tmp_path):
    weights = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"], "up")],
        "model",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 64])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 32])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    onnx.save(onnx.helper.make_model(graph), tmp_path / "m.onnx")
    said = run("quantize", tmp_path / "m.onnx").out
    assert "up (MatMul [64, 32]): error " in said
    assert ", 8.19 kB -> 1.31 kB\n" in said
    found = run("quantize", tmp_path / "m.q4.onnx", status=1).err
    assert "no layer can be quantized: up (MatMulNBits): its weights are quantized already\n" in found


def test_a_model_without_layers_for_adapters_is_named(run, tmp_path):
    weights = np.ones(4, np.float32)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Mul", ["x", "w"], ["y"])],
        "model",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 4])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 4])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    onnx.save(onnx.helper.make_model(graph), tmp_path / "m.onnx")
    options = ("--loss", "mse", "--adapter", "lora", "--out", tmp_path / "a")
    found = run("artifacts", tmp_path / "m.onnx", *options, status=1).err
    assert "target 'all-linear' fits no layer that can have an adapter; the model has no " in found
    assert ", Conv or Gather with constant weights\n" in found


def test_a_self_test_takes_seconds(run):
    assert re.search(r"^seconds +\d+\.\d\d$", run("doctor").out, re.MULTILINE)


def test_a_class_that_the_model_lacks_is_named_with_its_row(run, folder):
    """In the rows to train on, also beside a frozen body, in those for validation, and in those to evaluate."""
    pixels, wrong = PIXELS / np.float32(255), LABELS.copy()
    wrong[7] = 5
    np.savez("data.npz", x=pixels, y=LABELS)
    np.savez("wrong.npz", x=pixels, y=wrong)
    run("artifacts", "model.onnx", "--classes", 3, "--out", "head")
    named = "input 'labels': expected numbers of classes from 0 to 2, found 5 in row 7 of the "
    for made in ("artifacts", "head"):
        for command in ("train", "evaluate"):
            found = run(command, made, "--data", "wrong.npz", status=1).err
            assert f"ortrain: data: {named}data. Labels start at 0; the model has 3 scores per row." in found
        found = run("train", made, "--data", "data.npz", "--validation", "wrong.npz", status=1).err
        assert f"ortrain: validation: {named}validation data. Labels" in found


def test_a_model_with_fewer_scores_than_the_data_have_classes_is_told_their_names(run, folder):
    image = pytest.importorskip("PIL.Image")
    for number, name in enumerate(("cat", "dog", "emu", "owl")):
        (folder / "pictures" / name).mkdir(parents=True)
        image.fromarray(PIXELS[number, 0]).save(folder / "pictures" / name / "1.png")
    found = run("train", "artifacts", "--data", "pictures", status=1).err
    assert "the model has 3 scores per row, and the data have 4 classes: cat, dog, emu, owl.\n" in found


def test_a_file_is_not_written_under_the_name_of_a_folder(run, folder):
    """A path that ends in a slash, whether or not the folder exists."""
    np.savez("data.npz", x=PIXELS / np.float32(255), y=LABELS)
    for command in (
        ("export", "artifacts", "out/"),
        ("quantize", "model.onnx", "out/"),
        ("convert", "artifacts/checkpoint", "out/"),
        ("new", "mlp", "--data", "data.npz", "--out", "out/"),
        ("profile", "artifacts", "--trace", "out/"),
    ):
        assert "expected a file name, found the folder out/\n" in run(*command, status=2).err
    assert not (folder / "out").exists()
    run("convert", "artifacts/checkpoint", "out/", "--folder")
    assert (folder / "out").is_dir()
    run("export", "artifacts", "out/model.onnx")
    said = run("export", "artifacts", "out", status=1).err
    assert "cannot write the" in said
    assert "'out': expected a file name, found a folder" in said
