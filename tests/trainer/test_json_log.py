"""The log of a run as JSON lines: what is in it, compared with what the run itself has."""

from __future__ import annotations

import base64
import json
import math

import numpy as np
import onnx
import pytest
import small
from ortrain import Trainer, artifacts
from ortrain.trainer import Callback, JSONLogger, LambdaCallback
from ortrain.trainer.summaries import BINS, Misread, describe_array, describe_row
from system import needs_replacing_open_files

X, Y = small.rows(96)  # three batches


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return small.make_artifacts(tmp_path_factory.mktemp("artifacts"))


def fit(folder, path, *others, epochs=3, options=None, **arguments):
    """Train with a log; return trainer and lines."""
    trainer = Trainer(folder, learning_rate=1e-2, metrics=["accuracy"], schedule="linear", threads=1)
    logger = JSONLogger(path, **(options or {}))
    trainer.fit((X, Y), epochs, callbacks=[*others, logger], verbose=False, **arguments)
    return trainer, read(path)


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def of(lines, event):
    return [line for line in lines if line["event"] == event]


def test_the_lines_of_a_run(folder, tmp_path):
    steps, wanted = [], []

    def remember(batch, logs):
        steps.append(dict(logs))

    trainer, lines = fit(
        folder, tmp_path / "log.jsonl", LambdaCallback(on_train_batch_end=remember), validation=(X, Y)
    )
    begin, end = lines[0], lines[-1]
    assert [begin["event"], lines[1]["event"], end["event"]] == ["begin", "model", "end"]
    assert begin["format"] == 1
    assert begin["parameters"] == trainer.module.get_parameters_size(True)
    wanted = {
        "batch_size": 32,
        "epochs": 3,
        "schedule": "linear",
        "optimizer": "AdamW",
        "learning_rate": 1e-2,
    }
    assert wanted.items() <= begin["settings"].items()
    assert end["status"] == "complete"
    found = of(lines, "step")
    assert [line["step"] for line in found] == list(range(1, 10))
    assert [(line["loss"], line["learning_rate"]) for line in found] == [
        (logs["loss"], logs["learning_rate"]) for logs in steps
    ]
    epochs = of(lines, "epoch")
    for name, values in trainer.history.items():
        assert [line[name] for line in epochs] == values
    elapsed = [line["elapsed"] for line in lines]
    assert elapsed == sorted(elapsed)
    assert sum(line["seconds"] for line in found) < elapsed[-1]
    assert any(line.get("memory", 0) > 1e6 for line in found)


def test_steps_of_accumulated_gradients(folder, tmp_path):
    """Of three batches an epoch, two are one step; the third is a step when the epoch ends, without a loss."""
    trainer = Trainer(folder, accumulate=2, threads=1)
    trainer.fit((X, Y), 3, callbacks=[JSONLogger(tmp_path / "log.jsonl")], verbose=False)
    lines = read(tmp_path / "log.jsonl")
    assert [(line["step"], line["epoch"]) for line in of(lines, "step")] == [(1, 0), (3, 1), (5, 2)]
    assert [line["step"] for line in of(lines, "epoch")] == [2, 4, 6]


def test_fewer_lines(folder, tmp_path):
    none = {"norms": 0, "layers": 0, "profile": 0, "samples": 0}
    _, lines = fit(folder, tmp_path / "log.jsonl", options={"every": 2, **none}, validation=(X, Y))
    assert [line["step"] for line in of(lines, "step")] == [2, 4, 6, 8]
    assert {line["event"] for line in lines} == {"begin", "model", "step", "confusion", "epoch", "end"}
    assert not any("gradient_norm" in line for line in lines)
    with pytest.raises(ValueError, match="layers: expected 'epoch' or 0 or more"):
        JSONLogger("x", layers="step")
    with pytest.raises(ValueError, match="norms: expected 0 or more, found -1"):
        JSONLogger("x", norms=-1)


class Watch(Callback):
    """Keeps parameters and gradients of each step."""

    def __init__(self):
        self.seen = {}

    def on_train_batch_end(self, batch, logs):
        self.seen[self.trainer.step] = {
            name: {"parameter": parameter.data.copy(), "gradient": parameter.grad.copy()}
            for name, parameter in self.trainer.state.parameters
            if parameter.requires_grad
        }


@pytest.mark.parametrize(("layers", "steps"), [("epoch", [1, 4, 7, 9]), (4, [4, 8, 9])])
def test_norms_and_histograms_are_those_of_numpy(folder, tmp_path, layers, steps):
    watch = Watch()
    _, lines = fit(folder, tmp_path / "log.jsonl", watch, options={"layers": layers, "norms": 2})
    found = of(lines, "layers")
    assert [line["step"] for line in found] == steps
    for line in found:
        assert set(line["layers"]) == set(small.TRAINED)
        for name, kinds in line["layers"].items():
            for kind, described in kinds.items():
                values = watch.seen[line["step"]][name][kind].astype(np.float64)
                assert described["norm"] == pytest.approx(np.linalg.norm(values), rel=1e-5)
                assert (described["min"], described["max"]) == (values.min(), values.max())
                counts, _ = np.histogram(values, BINS, (values.min(), values.max()))
                if values.min() < values.max():  # a bound may go to either side of it
                    assert np.abs(np.cumsum(counts) - np.cumsum(described["counts"])).max() <= 1
                assert sum(described["counts"]) == values.size
        everything = np.concatenate(
            [kinds["parameter"].ravel() for kinds in watch.seen[line["step"]].values()]
        )
        assert line["parameter_norm"] == pytest.approx(np.linalg.norm(everything), rel=1e-5)
    norms = {line["step"]: line["gradient_norm"] for line in of(lines, "step") if "gradient_norm" in line}
    assert list(norms) == [2, 4, 6, 8]
    for step, norm in norms.items():
        gradients = np.concatenate([kinds["gradient"].ravel() for kinds in watch.seen[step].values()])
        assert norm == pytest.approx(np.linalg.norm(gradients), rel=1e-5)


def test_a_long_run_describes_its_layers_a_hundred_times_at_most(folder, tmp_path):
    _, lines = fit(folder, tmp_path / "log.jsonl", epochs=150)
    assert len(of(lines, "layers")) == 75 + 1  # every other epoch, and the end


@pytest.mark.parametrize(
    "values",
    [
        np.full(5, 3.0, np.float32),
        np.zeros(0, np.float32),
        np.array([1, np.nan, np.inf, -2], np.float32),
        np.array([3e30, -4e30], np.float32),
        np.array([1, 2, 3], np.float16),
        np.arange(200_000, dtype=np.float32),
    ],
    ids=["constant", "empty", "not finite", "large", "half", "many"],
)
def test_arrays_of_every_kind_are_described(values):
    described = describe_array(values)
    finite = values[np.isfinite(values)].astype(np.float64)
    assert described["norm"] == pytest.approx(np.linalg.norm(finite), rel=1e-5)
    assert described.get("not_finite", 0) == values.size - finite.size
    assert sum(described["counts"]) == min(finite.size, 50_000)
    assert math.isfinite(described["min"] + described["max"])
    json.dumps(described, allow_nan=False)


def test_the_profile_is_of_some_steps_at_the_beginning(folder, tmp_path):
    _, lines = fit(folder, tmp_path / "log.jsonl", options={"profile": 2}, epochs=5)
    (profile,) = of(lines, "profile")
    assert (profile["steps"], profile["step"]) == (2, 5)
    names = [row["name"] for row in profile["operators"]]
    assert any("MatMul" in name or "Gemm" in name for name in names)
    assert sum(row["milliseconds"] for row in profile["operators"]) <= profile["milliseconds"] * 1.01
    assert profile["nodes"][0]["milliseconds"] >= profile["nodes"][-1]["milliseconds"]


def test_a_profile_that_the_validation_cuts_short(folder, tmp_path):
    _, lines = fit(folder, tmp_path / "log.jsonl", options={"profile": 50}, validation=(X, Y), epochs=2)
    (profile,) = of(lines, "profile")
    assert profile["steps"] == 3  # the second epoch, without its eval steps


def test_the_model_is_in_the_log(folder, tmp_path):
    _, lines = fit(folder, tmp_path / "log.jsonl")
    (model,) = of(lines, "model")
    graph = onnx.load(folder / "eval_model.onnx").graph
    assert [node["outputs"] for node in model["nodes"]] == [list(node.output) for node in graph.node]
    assert [node["operator"] for node in model["nodes"]] == [node.op_type for node in graph.node]
    trained = [name for name, parameter in model["parameters"].items() if parameter["trained"]]
    assert sorted(trained) == sorted(small.TRAINED)
    assert model["parameters"]["w1"]["shape"] == [8, 16]


def test_misread_rows_are_those_that_the_model_gets_wrong(folder, tmp_path):
    trainer, lines = fit(folder, tmp_path / "log.jsonl", validation=(X, Y), options={"samples": 5})
    found = of(lines, "samples")
    assert [line["epoch"] for line in found] == [0, 1, 2]
    scores = trainer.predict(X)
    wrong = np.flatnonzero(scores.argmax(axis=1) != Y)
    assert (found[-1]["rows"], found[-1]["wrong"], found[-1]["input"]) == (96, len(wrong), "x")
    margins = {int(row): float(scores[row].max() - scores[row, Y[row]]) for row in wrong}
    most = sorted(margins, key=lambda row: -margins[row])[:5]
    assert [sample["row"] for sample in found[-1]["samples"]] == most
    for sample in found[-1]["samples"]:
        assert sample["expected"] == Y[sample["row"]]
        assert sample["predicted"] == scores[sample["row"]].argmax()
        assert sample["margin"] == pytest.approx(margins[sample["row"]], rel=1e-4)
        assert sample["values"] == X[sample["row"]].tolist()


def test_how_often_each_class_is_taken_for_each(folder, tmp_path):
    metrics = pytest.importorskip("sklearn.metrics")
    trainer = Trainer(folder, learning_rate=1e-2, threads=1)
    trainer.classes = ["one", "two", "three"]
    logger = JSONLogger(tmp_path / "log.jsonl", samples=0)
    trainer.fit((X, Y), 2, validation=(X, Y), callbacks=[logger], verbose=False)
    lines = read(tmp_path / "log.jsonl")
    assert lines[0]["classes"] == ["one", "two", "three"]
    predicted = trainer.predict(X).argmax(axis=1)
    last = of(lines, "confusion")[-1]
    expected = metrics.confusion_matrix(Y, predicted, labels=range(3))
    assert (last["counts"], last["rows"]) == (expected.tolist(), 96)
    assert last["wrong"] == int((predicted != Y).sum())
    assert [line["epoch"] for line in of(lines, "confusion")] == [0, 1]

    trainer.save(tmp_path / "named.ckpt")
    assert Trainer(folder, checkpoint=tmp_path / "named.ckpt").classes == ["one", "two", "three"]
    assert Trainer(folder).classes is None


def test_many_classes_are_not_counted():
    misread = Misread(3)
    misread.look_at((X[:3], np.array([0, 1, 60])), (0.0, np.eye(3, 61, dtype=np.float32)))
    assert (misread.rows, misread.wrong, misread.confusion.size) == (3, 1, 0)


def test_no_rows_are_kept_of_what_is_no_classifier():
    misread = Misread(3)
    scores = np.eye(3, dtype=np.float32)
    for batch, outputs in [
        ((X[:3], np.zeros(3, np.float32)), (0.0, scores)),  # a target that is not a class
        ((X[:3], np.zeros((3, 1), np.int64)), (0.0, scores)),
        ((X[:3], np.zeros(3, np.int64)), (0.0,)),
        ((X[:3], np.zeros(3, np.int64)), (0.0, scores[:, 0])),
    ]:
        misread.look_at(batch, outputs)
    assert (misread.rows, misread.wrong) == (0, 0)
    misread.look_at((X[:3], np.array([-100, 0, 0])), (0.0, scores))  # the first one is ignored by the loss
    assert (misread.rows, misread.wrong) == (3, 2)


@pytest.mark.parametrize(
    ("shape", "stored"),
    [((8, 8), (1, 8, 8)), ((1, 8, 8), (1, 8, 8)), ((30, 20, 3), (3, 30, 20)), ((3, 100, 60), (3, 34, 20))],
)
def test_images_are_stored_as_bytes(shape, stored):
    row = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found = describe_row(row)
    assert tuple(found["shape"]) == stored
    levels = np.frombuffer(base64.b64decode(found["pixels"]), np.uint8).reshape(stored)
    values = found["low"] + levels / 255 * (found["high"] - found["low"])
    pixels = row[None] if row.ndim == 2 else row.transpose(2, 0, 1) if shape[2] == 3 else row
    stride = 3 if max(shape) == 100 else 1
    np.testing.assert_allclose(values, pixels[:, ::stride, ::stride], atol=(row.max() - row.min()) / 500)


def test_a_run_that_fails_says_why(folder, tmp_path):
    def stop(batch, logs):
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="disk"):
        fit(folder, tmp_path / "log.jsonl", LambdaCallback(on_train_batch_end=stop))
    end = read(tmp_path / "log.jsonl")[-1]
    assert (end["event"], end["status"], end["error"]) == ("end", "failed", "RuntimeError: the disk is full")


def test_a_run_in_the_handler_of_an_error_has_not_failed(folder, tmp_path):
    try:
        raise ValueError("an earlier attempt")
    except ValueError:
        _, lines = fit(folder, tmp_path / "log.jsonl", epochs=1)
    assert lines[-1]["status"] == "complete"


def test_values_that_are_not_finite_are_null(folder, tmp_path):
    def spoil(epoch, logs):
        logs["loss"] = math.nan

    _, lines = fit(folder, tmp_path / "log.jsonl", LambdaCallback(on_epoch_end=spoil))
    assert "NaN" not in (tmp_path / "log.jsonl").read_text()
    assert [line["loss"] for line in of(lines, "epoch")] == [None] * 3


@needs_replacing_open_files
def test_a_new_run_takes_the_place_of_the_file_at_once(folder, tmp_path):
    path = tmp_path / "log.jsonl"
    fit(folder, path)
    before = path.stat().st_ino
    with path.open() as reader:
        fit(folder, path, epochs=1)
        assert (
            len(of([json.loads(line) for line in reader], "epoch")) == 3
        )  # the reader still has the whole old file
    assert path.stat().st_ino != before
    assert len(of(read(path), "epoch")) == 1


def test_a_regressor_has_a_log_too(tmp_path):
    model = small.model()
    artifacts.generate_artifacts(
        model, requires_grad=small.TRAINED, frozen_params=small.FROZEN, loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD, artifact_directory=tmp_path, additional_output_names=["scores"],
    )  # fmt: skip
    trainer = Trainer(tmp_path)
    targets = np.eye(3, dtype=np.float32)[Y]
    trainer.fit(
        (X, targets), 2, validation=(X, targets), callbacks=[JSONLogger(tmp_path / "l.jsonl")], verbose=False
    )
    lines = read(tmp_path / "l.jsonl")
    assert of(lines, "samples") == []
    assert lines[0]["settings"]["optimizer"] == "SGD"
