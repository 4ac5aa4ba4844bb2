"""`ortrain profile` and the calls that it is based on."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import ortrain
import pytest
from ortrain import profiling
from ortrain.api import CheckpointState, Module, Optimizer


@pytest.fixture
def artifacts(mlp):
    return mlp.folder


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ortrain", "profile", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_every_node_of_the_step_is_in_the_recording(artifacts):
    trace = profiling.record(artifacts, steps=3, batch=4, given={})
    runs = [e["name"] for e in trace["traceEvents"] if e["cat"] == "run"]
    assert runs == ["train step", "optimizer step"] * 3
    operators = {e["name"] for e in trace["traceEvents"] if e["cat"] == "train step"}
    assert {"Gemm", "Relu", "ReluGrad"} <= operators
    for event in trace["traceEvents"]:
        assert event["dur"] >= 0
        assert event["ph"] == "X"


def test_kernels_lie_within_their_run(artifacts):
    trace = profiling.record(artifacts, steps=2, batch=4, given={})
    runs = {e["args"]["run"]: e for e in trace["traceEvents"] if e["cat"] == "run"}
    for event in trace["traceEvents"]:
        run = runs[event["args"]["run"]]
        assert run["ts"] <= event["ts"] + 1e-3
        assert event["ts"] + event["dur"] <= run["ts"] + run["dur"] + 2e-3


def test_the_memory_of_a_step_is_in_the_recording(artifacts):
    trace = profiling.record(artifacts, steps=1, batch=64, given={})
    step = next(e["args"] for e in trace["traceEvents"] if e["name"] == "train step")
    # The memory in use includes the activations that the backward pass reads.
    assert 64 * 16 * 4 <= step["live_bytes"] <= step["arena_bytes"] <= 1.1 * step["live_bytes"]
    assert "in use at the same time" in profiling.memory_line(trace)


def test_the_table_adds_up(artifacts):
    trace = profiling.record(artifacts, steps=4, batch=4, given={})
    rows, total = profiling.summarize(trace)
    assert sum(row.milliseconds for row in rows) <= total + 1e-6
    assert {row.name: row.calls for row in rows}["AdamWOptimizer"] == 1
    by_node, same_total = profiling.summarize(trace, by_node=True)
    assert same_total == total
    assert len(by_node) > len(rows)
    assert sum(r.milliseconds for r in by_node) == pytest.approx(sum(r.milliseconds for r in rows))


def test_results_are_those_of_a_run_without_a_recording(artifacts):
    rng = np.random.default_rng(1)
    images = rng.standard_normal((4, 64), dtype=np.float32)
    labels = rng.integers(0, 10, 4)
    losses = []
    for record in (False, True):
        state = CheckpointState.load_checkpoint(artifacts / "checkpoint")
        module = Module(artifacts / "training_model.onnx", state)
        optimizer = Optimizer(artifacts / "optimizer_model.onnx", module)
        if record:
            module.start_profiling()
        for _ in range(3):
            loss = module(images, labels)
            optimizer.step()
            module.lazy_reset_grad()
        losses.append(loss)
    assert losses[0] == losses[1]


def test_a_recording_that_was_not_begun_cannot_be_taken(artifacts):
    module = Module(
        artifacts / "training_model.onnx", CheckpointState.load_checkpoint(artifacts / "checkpoint")
    )
    with pytest.raises(ortrain.OrtrainError, match="no recording is in progress"):
        module.end_profiling()


@pytest.mark.thorough
def test_the_command_takes_entries_of_the_configuration(artifacts):
    good = command(artifacts, "--steps", "2", "--config", "ortrain.mixed_precision=none")
    assert good.returncode == 0, good.stdout + good.stderr
    unknown = command(artifacts, "--steps", "2", "--config", "ortrain.mixed_precision=fp8")
    assert unknown.returncode == 2
    assert "found 'fp8'" in unknown.stderr
    malformed = command(artifacts, "--config", "ortrain.mixed_precision")
    assert malformed.returncode == 2
    assert "expected KEY=VALUE" in malformed.stderr


def test_the_command_prints_a_table_and_writes_a_trace(artifacts, tmp_path):
    np.savez(tmp_path / "in.npz", input=np.ones((5, 64), np.float32), labels=np.ones(5, np.int64))
    ran = command(
        artifacts, "--steps", 2, "--inputs", tmp_path / "in.npz", "--limit", 3, "--trace", tmp_path / "t.json"
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "operator" in ran.stdout
    assert "more" in ran.stdout
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere"),
        (["--inputs"], "no input wrong; its inputs are"),
    ],
)
def test_the_command_names_what_is_wrong(artifacts, tmp_path, arguments, message):
    np.savez(tmp_path / "in.npz", wrong=np.ones(3))
    given = arguments if arguments[0] == "nowhere" else [artifacts, "--inputs", tmp_path / "in.npz"]
    ran = command(*given)
    assert ran.returncode == 1
    assert message in ran.stderr


@pytest.mark.thorough
def test_a_file_that_cannot_be_read_or_written_is_named(artifacts, tmp_path):
    (tmp_path / "text.npz").write_text("no archive")
    for option, name in (("--inputs", "none.npz"), ("--inputs", "text.npz"), ("--trace", "nowhere/t.json")):
        ran = command(artifacts, "--steps", 1, option, tmp_path / name)
        assert ran.returncode == 1
        assert name in ran.stderr
        assert "Traceback" not in ran.stderr
