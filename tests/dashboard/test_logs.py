"""Logs are read while they grow, whatever is in them."""

from __future__ import annotations

import json
import math
import os
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ortrain.dashboard.logs import Log
from ortrain.dashboard.runs import Runs
from run_logs import begin, step, write
from system import needs_named_pipes


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.jsonl"


def read(path) -> Log:
    log = Log(path)
    log.refresh()
    return log


def losses(log: Log) -> list[tuple[float, float]]:
    series = log.series["step.loss"]
    return list(zip(series.step, series.value, strict=True))


def test_a_half_written_line_is_left_until_it_is_complete(path):
    write(path, begin(), step(1, 0.5), '{"event": "step", "st', end="")
    log = read(path)
    assert losses(log) == [(1, 0.5)]
    assert log.bad_lines == 0
    write(path, 'ep": 2, "epoch": 0, "elapsed": 1, "loss": 0.25}', mode="a")
    assert log.refresh()
    assert losses(log) == [(1, 0.5), (2, 0.25)]
    assert not log.refresh()


def test_only_what_is_new_is_read(path):
    write(path, begin(), *(step(n) for n in range(1, 5000)))
    log = read(path)
    taken = []
    log._take = lambda line: (taken.append(line), Log._take(log, line))
    write(path, step(5000), mode="a")
    log.refresh()
    assert len(taken) == 1
    assert losses(log)[-1][0] == 5000


@pytest.mark.parametrize("keep", ["shorter", "longer", "same length"])
def test_a_file_that_is_replaced_is_read_again(path, keep):
    write(path, begin(), *(step(n, 1.0) for n in range(1, 50)))
    log = read(path)
    count = {"shorter": 20, "longer": 80, "same length": 50}[keep]
    write(path.with_suffix(".new"), begin(), *(step(n, 2.0) for n in range(1, count)))
    os.replace(path.with_suffix(".new"), path)
    log.refresh()
    assert losses(log) == [(n, 2.0) for n in range(1, count)]


def test_lines_that_make_no_sense_are_named_and_the_others_read(path):
    write(
        path, begin(), "no JSON", step(1), "[1, 2]", '{"step": 3}', {**step(2), "step": -1}, {**step(2), "step": "x"},
        "", {**step(2), "epoch": True}, "[" * 100_000, step(3), {"event": "later", "step": 3, "epoch": 0},
    )  # fmt: skip
    log = read(path)
    assert losses(log) == [(1, 1.0), (3, 1.0)]
    assert log.bad_lines == 7
    assert [line for line, _ in log.problems] == [2, 4, 5, 6, 7, 9, 10]
    assert "not JSON" in log.problems[0][1]


def test_a_line_that_is_too_long_is_skipped(path, monkeypatch):
    monkeypatch.setattr("ortrain.dashboard.logs._LONGEST_LINE", 1000)
    monkeypatch.setattr("ortrain.dashboard.logs._CHUNK", 300)
    write(path, begin(), step(1), json.dumps(step(2, note="x" * 5000)), step(3))
    log = read(path)
    while log.refresh():
        pass
    assert [at for at, _ in losses(log)] == [1, 3]
    assert log.bad_lines == 1


def test_values_that_are_not_finite(path):
    write(path, begin(), step(1, None), '{"event":"step","step":2,"epoch":0,"loss":NaN}',
          '{"event":"step","step":3,"epoch":0,"loss":1e999,"text":"x","flag":true}',
          '{"event":"step","step":4,"epoch":0,"loss":' + "9" * 400 + "}", step(5, 0.5))  # fmt: skip
    log = read(path)
    assert [math.isnan(value) for _, value in losses(log)] == [True] * 4 + [False]
    assert set(log.series) == {"step.loss"}


def test_lines_that_were_copied_twice_count_once(path):
    write(path, begin(), step(1, 3.0), step(2, 2.0), step(1, 3.0), step(2, 2.5), step(3, 1.0))
    assert losses(read(path)) == [(1, 3.0), (2, 2.5), (3, 1.0)]


@pytest.mark.parametrize(
    ("lines", "state"),
    [
        ([], "running"),
        ([{"event": "end", "step": 1, "epoch": 1, "status": "complete"}], "complete"),
        ([{"event": "end", "step": 1, "epoch": 1, "status": "failed", "error": "no"}], "failed"),
        ([{"event": "end", "step": 1, "epoch": 1}, begin(resumed=True)], "running"),
        ([{"event": "end", "step": 1, "epoch": 1, "status": ["x"]}], "complete"),
    ],
)
def test_states(path, lines, state):
    write(path, begin(), step(1), *lines)
    assert read(path).state == state


def test_a_run_that_was_killed(path):
    write(path, begin(), step(1))
    os.utime(path, (time.time() - 3600,) * 2)
    assert read(path).state == "lost"


@needs_named_pipes
def test_other_files_are_no_runs(tmp_path):
    write(tmp_path / "data.jsonl", {"image": [1], "label": 2})
    write(tmp_path / "empty.jsonl", end="")
    write(tmp_path / "a/log.jsonl", begin(), step(1))
    write(tmp_path / ".hidden/log.jsonl", begin(), step(1))
    write(tmp_path / "a/set-aside-1/log.jsonl", begin(), step(1), step(2))  # not a run
    write(tmp_path / "newer.jsonl", begin(format=2), step(1))
    (tmp_path / "folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    runs = Runs(tmp_path)
    runs.refresh()
    found = {run["file"]: run for run in runs.describe()}
    assert list(found) == ["a/log.jsonl", "newer.jsonl"]
    assert found["a/log.jsonl"]["name"] == "a"
    assert "format is 2; this version of ortrain knows 1" in found["newer.jsonl"]["problems"][0]
    assert [other.partition(":")[0] for other in runs.others] == ["data.jsonl", "pipe.jsonl"]


def test_a_large_file_is_read_in_parts(path):
    line = json.dumps(step(1, note="x" * 500))
    write(path, begin(), *[line.replace('"step": 1', f'"step": {n}') for n in range(1, 12_000)])
    log = Log(path)
    log.refresh(seconds=0)
    assert not log.complete
    assert 0 < log.read < log.size
    while not log.complete:
        log.refresh(seconds=0)
    assert len(losses(log)) == 11_999


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
LINES = [
    begin(parameters=3, settings={"a": [1, {"b": 2}]}, classes=["cat", "dog"]),
    step(2, seconds=0.1, gradient_norm=1.0),
    {"event": "epoch", "step": 2, "epoch": 0, "loss": 1.0, "val_loss": 2.0, "confusion_matrix": [[1, 0], [0, 1]]},
    {"event": "layers", "step": 2, "epoch": 0, "parameter_norm": 1.0,
     "layers": {"w": {"parameter": {"norm": 1.0, "min": 0.0, "max": 1.0, "counts": [1, 2]}, "gradient": None}}},
    {"event": "profile", "step": 2, "epoch": 0, "steps": 2, "milliseconds": 1.0,
     "operators": [{"name": "Conv", "calls": 1.0, "milliseconds": 0.5}], "nodes": []},
    {"event": "samples", "step": 2, "epoch": 0, "input": "x", "rows": 3, "wrong": 1,
     "samples": [{"row": 1, "predicted": 0, "expected": 1, "margin": 1.0, "shape": [1, 1, 2], "low": 0.0, "high": 1.0,
                  "pixels": "AAE="}, {"row": 2, "shape": [2], "values": [1.0, 2.0]}]},
    {"event": "confusion", "step": 2, "epoch": 0, "rows": 3, "wrong": 1, "counts": [[1, 1], [0, 1]]},
    {"event": "model", "step": 0, "epoch": 0, "file": "m", "parameters": {"w": {"shape": [2], "trained": True}},
     "nodes": [{"name": "a/b", "operator": "Gemm", "inputs": ["x", "w"], "outputs": ["y"]},
               {"name": "a/c", "operator": "Relu", "inputs": ["y"], "outputs": ["x"]}]},
    {"event": "end", "step": 2, "epoch": 1, "time": 1.0, "status": "failed", "error": "no"},
]  # fmt: skip


def places(value, path=()):
    """Yield where something is in a line."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in inner:
        yield from places(entry, (*path, key))


def replaced(value, path, new):
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@pytest.mark.first_case
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_question_is_answered_whatever_the_log_says(tmp_path_factory, data):
    """A value of any type anywhere in a log: the page gets JSON of the types that it expects."""
    from ortrain.dashboard import Server

    number = data.draw(st.integers(0, len(LINES) - 1))
    where = data.draw(st.sampled_from(list(places(LINES[number]))))
    lines = list(LINES)
    lines[number] = replaced(lines[number], where, data.draw(anything))
    folder = tmp_path_factory.mktemp("any")
    write(folder / "log.jsonl", *lines)
    server = Server(folder)
    try:
        found = server.answer("/api/runs", {})
        json.dumps(found, allow_nan=False)
        for run in found["runs"]:
            for path in ("series", "layers", "layer", "profile", "samples", "graph"):
                json.dumps(
                    server.answer(f"/api/{path}", {"run": [run["key"]], "name": ["w"]}), allow_nan=False
                )
    finally:
        server.server_close()
