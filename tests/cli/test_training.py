"""From a model to a trained and exported one, by the command alone."""

from __future__ import annotations

import json
import lzma
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from ortrain.api import CheckpointState, Module, Optimizer
from ortrain.cli.artifacts_command import LOSSES as cli_losses
from ortrain.onnxblock.loss import LOSSES
from ortrain.onnxblock.loss._loss import SeveralInputs
from system import needs_signals


def parameters(path):
    return {name: parameter.data for name, parameter in CheckpointState.load_checkpoint(path).parameters}


def test_the_artifacts_are_explained(artifacts, run, tmp_path):
    found = run(
        "artifacts",
        tmp_path / "model.onnx",
        "--loss",
        "cross_entropy",
        "--out",
        tmp_path / "b",
        "--freeze",
        "b",
        "--json",
    ).json
    assert {entry["name"]: entry["fate"] for entry in found["initializers"]} == {
        "w": "trained",
        "b": "frozen",
    }
    assert all(entry["reason"] for entry in found["initializers"])
    assert (tmp_path / "b/checkpoint").exists()


def test_artifacts_with_nothing_to_train_are_not_written(artifacts, run, tmp_path):
    ran = run(
        "artifacts",
        tmp_path / "model.onnx",
        "--loss",
        "cross_entropy",
        "--out",
        tmp_path / "b",
        "--freeze",
        "w",
        "--freeze",
        "b",
        status=1,
    )
    assert "no parameter to train" in ran.err
    assert not (tmp_path / "b").exists()


def test_merged_and_shared_weights_are_explained(run, tmp_path):
    data = Path(__file__).parents[1] / "data" / "fresh"
    for name in ("twice_ts", "tied_ts"):
        (tmp_path / f"{name}.onnx").write_bytes(lzma.decompress((data / name / "model.onnx.xz").read_bytes()))

    def made(name, *options):
        return run("artifacts", tmp_path / f"{name}.onnx", "--loss", "mse", "--out", tmp_path / "b", *options)

    shown = made("twice_ts").out
    assert "separated   fc.bias: equal values, merged by the exporter; now fc.bias, " in shown
    assert "shared      fc.weight: 3 nodes read it, /fc/Gemm, /fc_1/Gemm, /fc_2/Gemm" in shown
    found = made("tied_ts", "--json").json
    assert {change["kind"] for change in found["changes"]} == {"separated", "tied"}
    assert set(found["shared"]) == {"a.bias", "n.weight", "e.weight", "onnx::MatMul_18"}
    assert made("tied_ts", "--untie", "none", "--tie", "none", "--json").json["changes"] == []
    (change,) = made("tied_ts", "--untie", "none", "--json").json["changes"]
    assert (change["initializer"], change["parameters"]) == ("onnx::MatMul_20", ["e.weight"])
    options = ("--loss", "mse", "--out", tmp_path / "b", "--untie", "f*")
    error = run("artifacts", tmp_path / "tied_ts.onnx", *options, status=1).err
    assert "untie: the model has no floating-point initializer 'f*'" in error


def test_weights_decay_and_biases_do_not(artifacts, run, tmp_path):
    made = ("artifacts", tmp_path / "model.onnx", "--loss", "cross_entropy", "--weight-decay", "0.25")
    run(*made, "--out", tmp_path / "decay")
    state = CheckpointState.load_checkpoint(tmp_path / "decay/checkpoint")
    optimizer = Optimizer(
        tmp_path / "decay/optimizer_model.onnx", Module(tmp_path / "decay/training_model.onnx", state)
    )
    found = {name: (group.weight_decay, group.parameters) for name, group in optimizer.param_groups}
    assert found == {"group0": (0.25, ["w"]), "no_decay": (0.0, ["b"])}


def test_an_optimizer_has_a_name_and_settings(artifacts, run, tmp_path):
    made = ("artifacts", tmp_path / "model.onnx", "--loss", "focal", "--out", tmp_path / "lion")
    run(*made, "--optimizer", "lion", "--setting", "beta2=0.98", "--weight-decay", "0.25")
    first, second = onnx.load(tmp_path / "lion/optimizer_model.onnx").graph.node
    found = {a.name: onnx.helper.get_attribute_value(a) for a in first.attribute}
    assert (found["type"], found["weight_decay"]) == (b"lion", 0.25)
    assert found["beta2"] == pytest.approx(0.98)
    assert [a.s for a in second.attribute if a.name == "group"] == [b"no_decay"]
    said = run(*made, "--optimizer", "sgd", "--setting", "momntum=0.9", status=2).err
    assert "sgd has no momntum; it has momentum, dampening, weight_decay, nesterov" in " ".join(said.split())
    assert "expected NAME=NUMBER" in run(*made, "--optimizer", "sgd", "--setting", "momentum", status=2).err


def test_the_losses_of_one_output_have_names():
    assert cli_losses == [
        *(name for name, block in LOSSES.items() if not issubclass(block, SeveralInputs)),
        "none",
    ]


def test_train_evaluate_predict_export(artifacts, train_npz, rows, run, tmp_path):
    result = run(
        "train", artifacts, "--data", train_npz, "--epochs", 20, "--lr", 0.05, "--metric", "accuracy",
        "--validation", 0.25, "--keep", 2, "--patience", 20, "--schedule", "cosine", "--json",
    )  # fmt: skip
    history = result.json["history"]
    assert "epoch 20/20" in result.err
    assert history["val_accuracy"][-1] > 0.6 > history["accuracy"][0]
    assert len(list((artifacts / "runs/1").glob("epoch-*.ckpt"))) == 2
    assert len((artifacts / "runs/1/log.csv").read_text().splitlines()) == 21
    events = [json.loads(line)["event"] for line in (artifacts / "runs/1/log.jsonl").read_text().splitlines()]
    assert events.count("epoch") == 20

    evaluated = run("evaluate", artifacts, "--data", train_npz, "--metric", "accuracy", "--json").json
    run("export", artifacts, tmp_path / "trained.onnx")
    images, classes = rows
    feed = {"image": images.astype(np.float32) / 255}
    (scores,) = onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(["scores"], feed)
    assert evaluated["accuracy"] == pytest.approx((scores.argmax(axis=1) == classes).mean())
    for name in ("scores.npy", "scores.csv", "scores.npz"):
        run("predict", artifacts, "--data", train_npz, "--out", tmp_path / name)
    np.testing.assert_allclose(np.load(tmp_path / "scores.npy"), scores, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(np.load(tmp_path / "scores.npz")["scores"], scores, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        np.loadtxt(tmp_path / "scores.csv", delimiter=",", skiprows=1), scores, rtol=1e-4, atol=1e-5
    )
    untrained = run(
        "evaluate", artifacts, "--data", train_npz, "--checkpoint", artifacts / "checkpoint", "--json"
    ).json
    assert untrained["loss"] > evaluated["loss"]


def write(kind, folder, images, classes):
    flat = images.reshape(len(images), -1) / 255
    if kind == "npz":
        np.savez(folder / "d.npz", x=images / 255, y=classes)
        return folder / "d.npz"
    if kind == "npy":
        np.save(folder / "d.npy", np.column_stack([flat, classes]))
        return folder / "d.npy"
    names = [f"p{i}" for i in range(16)]
    if kind in ("csv", "tsv"):
        separator = "," if kind == "csv" else "\t"
        lines = [separator.join([*names, "class"])]
        lines += [
            separator.join(map(repr, [*row, int(c)])) for row, c in zip(flat.tolist(), classes, strict=True)
        ]
        (folder / f"d.{kind}").write_text("\n".join(lines) + "\n")
        return folder / f"d.{kind}"
    if kind == "jsonl":
        rows = [
            json.dumps({"image": (image / 255).tolist(), "labels": int(c)})
            for image, c in zip(images, classes, strict=True)
        ]
        (folder / "d.jsonl").write_text("\n".join(rows))
        return folder / "d.jsonl"
    if kind == "parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        columns = {name: flat[:, i] for i, name in enumerate(names)}
        parquet.write_table(pyarrow.table({**columns, "class": classes}), folder / "d.parquet")
        return folder / "d.parquet"
    image_module = pytest.importorskip("PIL.Image")
    for i, (image, c) in enumerate(zip(images, classes, strict=True)):
        (folder / "d" / str(c)).mkdir(parents=True, exist_ok=True)
        image_module.fromarray(image[0].astype(np.uint8)).save(folder / f"d/{c}/{i:03}.png")
    return folder / "d"


@pytest.mark.parametrize("kind", ["npz", "npy", "csv", "tsv", "jsonl", "parquet", "images"])
def test_every_kind_of_data_gives_the_same_loss(kind, artifacts, train_npz, rows, run, tmp_path):
    expected = run("evaluate", artifacts, "--data", train_npz, "--metric", "confusion_matrix", "--json").json
    path = write(kind, tmp_path, *rows)
    found = run("evaluate", artifacts, "--data", path, "--metric", "confusion_matrix", "--json").json
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert found["confusion_matrix"] == expected["confusion_matrix"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.txt", "x", "expected NPZ, NPY, CSV"),
        ("d.npz", "x", "expected an NPZ file"),
        ("d.csv", "a,b\n1\n", "line 2: expected 2 values, found 1"),
        ("d.csv", "a,b\n1,two\n", "column b: expected numbers"),
        ("d.csv", "a,b\n1,2\n", "input image takes 16 numbers per row; "),
        ("d.csv", "a,b\n", "expected rows"),
        ("d.jsonl", "[1]\n", "line 1: expected an object"),
    ],
)
def test_data_that_cannot_be_read_are_named(name, content, message, artifacts, run, tmp_path):
    (tmp_path / name).write_text(content)
    ran = run("evaluate", artifacts, "--data", tmp_path / name, status=1)
    assert message in ran.err
    assert ran.err.startswith("ortrain: ")
    assert "Traceback" not in ran.err
    assert "hint: " in ran.err


def test_an_error_shows_where_it_arose_only_if_asked(run, tmp_path):
    assert "Traceback" not in run("export", tmp_path / "none", "x.onnx", status=1).err
    assert "Traceback" in run("export", tmp_path / "none", "x.onnx", "--debug", status=1).err


# A Pillow, NumPy or click that is slow to load: Ctrl-C arrives while the program imports it.
SLOW_IMPORT = """
import signal, sys, time

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)
            time.sleep(5)

sys.meta_path.insert(0, Interrupting())
"""


SCRIPT = Path(sys.executable).with_name("ortrain")


def importing_from(folder):
    """The environment of a program that imports from a folder first."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.parametrize("module", ["numpy", "ortrain._ortrain", "click", "ortrain.cli.doctor_command"])
@pytest.mark.parametrize(
    "program",
    [
        ["-m", "ortrain"],
        pytest.param(
            [str(SCRIPT)], marks=pytest.mark.skipif(not SCRIPT.exists(), reason=f"needs {SCRIPT.name}")
        ),
    ],
)
def test_ctrl_c_during_the_imports_ends_the_program_without_a_traceback(program, module, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SLOW_IMPORT.format(module=module))
    done = subprocess.run(
        [sys.executable, *program, "doctor"],
        env=importing_from(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr in ("", "ortrain: interrupted\n")


def test_a_program_that_imports_the_package_keeps_its_ctrl_c(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SLOW_IMPORT.format(module="ortrain.library"))
    done = subprocess.run(
        [sys.executable, "-c", "import ortrain"],
        env=importing_from(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "KeyboardInterrupt" in done.stderr


@needs_signals
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_save_and_the_resumed_run_is_the_same(artifacts, train_npz, run, number):
    options = ["--data", train_npz, "--epochs", "30", "--batch", "8", "--validation", "0.25"]
    run("train", artifacts, *options, "--out", artifacts / "whole")
    whole = parameters(artifacts / "last.ckpt")
    command = [sys.executable, "-m", "ortrain", "train", artifacts, *options, "--from-start"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert process.stderr is not None
    process.stderr.readline()  # the first epoch is over
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130, said
    checkpoint = artifacts / "runs/1/interrupted.ckpt"
    assert f"--resume {checkpoint}" in said
    assert "Traceback" not in said
    run("train", artifacts, *options, "--resume", checkpoint)
    resumed = parameters(artifacts / "last.ckpt")
    assert {name: value.tobytes() for name, value in resumed.items()} == {
        name: value.tobytes() for name, value in whole.items()
    }


def test_a_new_head_needs_no_loss_and_no_names(artifacts, run, tmp_path):
    found = run(
        "artifacts", tmp_path / "model.onnx", "--classes", 4, "--out", tmp_path / "head", "--json"
    ).json
    assert found["head"]["classes"] == 4
    assert {e["name"] for e in found["initializers"] if e["fate"] == "trained"} == {"w", "b"}
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "four.npz", x=rng.normal(size=(8, 1, 4, 4)).astype(np.float32), y=np.arange(8) % 4)
    trained = run(
        "train",
        tmp_path / "head",
        "--data",
        tmp_path / "four.npz",
        "--metric",
        "accuracy",
        "--epochs",
        3,
        "--json",
    ).json
    assert trained["history"]["loss"][-1] < trained["history"]["loss"][0]
    assert "expected --loss, one of cross_entropy" in run("artifacts", tmp_path / "model.onnx", status=2).err
    words = ("--train", "last:2", "--train", "w")
    wrong = run("artifacts", tmp_path / "model.onnx", "--classes", 4, *words, status=2)
    assert "--train last:2 must be the only option --train, found 2" in wrong.err


def test_features_are_kept_in_a_folder_or_not_at_all(artifacts, run, rows, tmp_path):
    run("artifacts", tmp_path / "model.onnx", "--classes", 3, "--out", tmp_path / "head")
    np.savez(tmp_path / "train.npz", x=rows[0].astype(np.float32), y=rows[1])
    losses = []
    for where in ("memory", "off", tmp_path / "features"):
        arguments = (
            "--data",
            tmp_path / "train.npz",
            "--epochs",
            3,
            "--features",
            where,
            "--from-start",
            "--json",
        )
        losses.append(run("train", tmp_path / "head", *arguments).json["history"]["loss"])
    assert losses[0] == losses[1] == losses[2]


def test_a_run_takes_entries_of_the_session(artifacts, train_npz, run):
    arguments = ("train", artifacts, "--data", train_npz, "--epochs", 1, "--from-start", "--config")
    run(*arguments, "ortrain.lazy_rows=1")
    assert (
        "ortrain.lazy_rows: expected one of '0', '1', found '2'"
        in run(*arguments, "ortrain.lazy_rows=2", status=2).err
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("lazy_rows=1", "unknown session config entry 'lazy_rows' (did you mean 'ortrain.lazy_rows'"),
        ("ortrain.lazy_row=1", 'did you mean "ortrain.lazy_rows"?'),
        ("session.max_node=9", "did you mean 'session.max_nodes'"),
        ("a=b", "unknown session config entry 'a'; the known entries are ortrain.bf16_products, "),
        (
            "qnn.lora_config=x",
            "'qnn.lora_config' belongs to the options of a single run, not to those of a session",
        ),
        ("ortrain.disable_pass.no_such=1", "unknown session config entry 'ortrain.disable_pass.no_such'"),
        ("session.max_nodes=many", 'session.max_nodes: expected a number above 0, found "many"'),
    ],
)
def test_an_unknown_entry_of_the_session_is_rejected_before_training(
    artifacts, train_npz, run, entry, message
):
    found = run("train", artifacts, "--data", train_npz, "--epochs", 1, "--config", entry, status=2)
    assert message in found.err
    assert not (artifacts / "runs").exists()


def test_entries_of_onnxruntime_without_an_effect_are_named(artifacts, train_npz, run):
    entries = ("--config", "session.disable_prepacking=1", "--config", "ortrain.disable_pass.fuse_gelu=1")
    more = ("--config", "mlas.disable_kleidiai=1")
    found = run("train", artifacts, "--data", train_npz, "--epochs", 1, *entries, *more)
    assert (
        "session.disable_prepacking, mlas.disable_kleidiai: ortrain accepts these entries of onnxruntime but does not use the "
        "value"
    ) in found.err
    settings = json.loads((artifacts / "runs/1/log.jsonl").read_text().splitlines()[0])
    assert settings["settings"]["config"] == {"ortrain.disable_pass.fuse_gelu": "1"}


def test_a_run_that_is_rejected_leaves_no_folder(artifacts, train_npz, run):
    train = ("train", artifacts, "--data", train_npz)
    rejected = run(*train, "--validation", "1.5", status=1).err
    assert "validation: expected a share above 0 and below 1, found 1.5" in rejected
    assert not (artifacts / "runs").exists()
    run(*train, "--epochs", "1")
    run(*train, "--validation", "1.5", status=1)
    assert [path.name for path in (artifacts / "runs").iterdir()] == ["1"]


def test_the_settings_of_new_adapters_are_options(artifacts, run, tmp_path):
    command = (
        "artifacts",
        tmp_path / "model.onnx",
        "--loss",
        "cross_entropy",
        "--out",
        tmp_path / "lora",
        "--json",
    )
    given = ("--rank", 4, "--alpha", 3, "--dropout", 0.25, "--bias", "lora_only", "--rslora")
    found = run(*command, "--adapter", "dora", *given, "--target", "classify").json["adapters"]
    names = ("r", "alpha", "scale", "dropout", "bias", "use_rslora", "use_dora")
    assert [found[name] for name in names] == [4, 3, 1.5, 0.25, "lora_only", True, True]
    assert found["biases"]
    found = run(*command, "--adapter", "lora", "--target", "classify").json["adapters"]
    assert [found[name] for name in names] == [8, 16, 2, 0, "none", False, False]
    for option in (("--rank", 4), ("--alpha", 3), ("--dropout", 0.25), ("--bias", "all"), ("--rslora",)):
        for adapter in ((), ("--adapter", "none")):
            said = run(*command, *adapter, *option, status=2).err
            assert (
                f"{option[0]} is a setting of new adapters: expected --adapter lora or dora, found none"
                in said
            )
    assert "--dropout" in run(*command, "--adapter", "lora", "--dropout", 1, status=2).err


def test_adapters_are_trained_by_the_command(artifacts, run, rows, tmp_path):
    options = ("--loss", "cross_entropy", "--adapter", "lora", "--rank", 2, "--target", "classify")
    found = run("artifacts", tmp_path / "model.onnx", *options, "--out", tmp_path / "lora", "--json").json
    layer = found["adapters"]["layers"][0]
    assert (layer["module"], layer["operator"], found["adapters"]["r"]) == ("classify", "Gemm", 2)
    np.savez(tmp_path / "train.npz", x=rows[0].astype(np.float32) / 255, y=rows[1])
    data = ("--data", tmp_path / "train.npz", "--epochs", 3, "--lr", 0.05, "--json")
    losses = run("train", tmp_path / "lora", *data).json["history"]["loss"]
    assert losses[-1] < losses[0]
    assert set(parameters(tmp_path / "lora" / "last.ckpt")) == {layer["a"], layer["b"]}
    forms = {}
    for form in ("inside", "merged", "apart"):
        run(
            "export",
            tmp_path / "lora",
            tmp_path / f"{form}.onnx",
            "--adapters",
            form,
            "--peft",
            tmp_path / "peft",
        )
        session = onnxruntime.InferenceSession(str(tmp_path / f"{form}.onnx"))
        options = onnxruntime.RunOptions()
        if form == "apart":
            adapter = onnxruntime.LoraAdapter()
            adapter.Load(str(tmp_path / "apart.onnx_adapter"))
            options.add_active_adapter(adapter)
        forms[form] = session.run(["scores"], {"image": rows[0].astype(np.float32) / 255}, options)[0]
    np.testing.assert_allclose(forms["merged"], forms["inside"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(forms["apart"], forms["inside"], rtol=1e-4, atol=1e-5)
    wrong = run("artifacts", tmp_path / "model.onnx", "--loss", "mse", "--target", "classify", status=2)
    assert "expected --adapter lora" in wrong.err
    # What PEFT's files have is what another run starts from.
    again = ("--loss", "cross_entropy", "--adapter", tmp_path / "peft", "--out", tmp_path / "again")
    run("artifacts", tmp_path / "model.onnx", *again)
    before, after = (
        parameters(tmp_path / "lora" / "last.ckpt"),
        parameters(tmp_path / "again" / "checkpoint"),
    )
    assert all((before[name] == after[name]).all() for name in before)


def test_an_export_of_adapters_that_are_not_there_writes_no_model(artifacts, run, tmp_path):
    for options in (("--peft", tmp_path / "peft"), ("--adapters", "apart")):
        said = run("export", artifacts, tmp_path / "made.onnx", *options, status=1).err
        assert "no adapters" in said or "has no adapter" in said, said
        assert not (tmp_path / "made.onnx").exists()
        assert not (tmp_path / "peft").exists()


def test_both_names_of_dora_adapters_make_the_same_artifacts(artifacts, run, tmp_path):
    made = []
    for name, options in (("a", ("dora",)), ("b", ("lora", "--dora")), ("c", ("dora", "--dora"))):
        asked = (
            "--loss",
            "cross_entropy",
            "--target",
            "classify",
            "--out",
            tmp_path / name,
            "--adapter",
            *options,
        )
        found = run("artifacts", tmp_path / "model.onnx", *asked, "--json").json["adapters"]
        assert found["use_dora"]
        assert found["layers"][0]["magnitude"] == "classify.lora_magnitude_vector"
        made.append(parameters(tmp_path / name / "checkpoint"))
    assert all((made[0][name] == other[name]).all() for other in made[1:] for name in made[0])
    asked = ("artifacts", tmp_path / "model.onnx", "--loss", "cross_entropy", "--out", tmp_path / "d")
    assert run(*asked, "--adapter", "none", "--json").json["adapters"] is None


def test_an_unknown_kind_of_adapters_is_refused_by_every_command(artifacts, run, tmp_path):
    expected = "expected lora, dora, none, or a folder with the adapters that PEFT saved, found 'doora'"
    asked = ("--adapter", "doora")
    assert expected in run("artifacts", tmp_path / "model.onnx", "--loss", "mse", *asked, status=2).err
    assert expected in run("train", tmp_path / "model.onnx", "--data", "x.jsonl", *asked, status=2).err


def test_a_recipe_for_data_alone(tmp_path, run, monkeypatch, train_npz):
    monkeypatch.chdir(tmp_path)
    names = ["--augment", "flip,cutmix", "--optimizer", "muon", "--metrics", "accuracy,auc"]
    found = run("train", "--data", train_npz, "--epochs", 3, "--validation", 0.2, *names, "--json").json
    assert {"val_accuracy", "auc"} <= found["history"].keys()
    optimizer = onnx.load("artifacts/optimizer_model.onnx").graph.node[-1]
    assert [a.s for a in optimizer.attribute if a.name == "type"] == [b"muon"]
    assert (
        0.0
        <= run("evaluate", "artifacts", "--data", train_npz, "--metrics", "iou,f1", "--json").json["iou"]
        <= 1
    )
    said = run("train", "artifacts", "--data", train_npz, "--optimizer", "lion", status=2).err
    assert "the artifacts in artifacts already have a loss and an optimizer" in said
