"""Whatever is wrong with one file, the other runs are shown, and none keeps the server busy."""

from __future__ import annotations

import json
import os
import threading

import pytest
from ortrain.dashboard import logs
from ortrain.dashboard import runs as runs_module
from ortrain.dashboard.logs import Log
from ortrain.dashboard.runs import Runs
from run_logs import begin, step, write
from system import needs_links

VIEWS = ("series", "layers", "layer", "profile", "samples", "graph")


def nested(depth: int, begins: str = "[", ends: str = "]") -> str:
    return begins * depth + "1" + ends * depth


def line(entry: dict, name: str, value: str) -> str:
    """Return a line in which a value is the given JSON."""
    return json.dumps({**entry, name: 0}).replace(f'"{name}": 0', f'"{name}": {value}')


@pytest.mark.parametrize("depth", [5, 100, 400, 900, 100_000])
@pytest.mark.parametrize(("begins", "ends"), ["[]", ('{"a":', "}")], ids=["lists", "objects"])
@pytest.mark.parametrize("name", ["settings", "format", "classes", "time", "parameters"])
def test_one_line_nested_deep_is_the_problem_of_its_file(serve, tmp_path, depth, begins, ends, name):
    write(tmp_path / "good.jsonl", begin(), step(1))
    value = nested(depth, begins, ends)
    write(tmp_path / "bad.jsonl", line(begin(), name, '{"a": ' + value + "}"), step(1))
    client = serve(tmp_path)
    found = client.ask("/api/runs").json
    shown = [run["file"] for run in found["runs"]]
    assert "good.jsonl" in shown
    assert "bad.jsonl" in shown or any(other.startswith("bad.jsonl: ") for other in found["others"])
    for run in found["runs"]:
        for view in VIEWS:
            assert client.ask(f"/api/{view}?run={run['key']}&name=w").status == 200


DETAILS = {
    "model": {"nodes": '[{"name": VALUE, "operator": VALUE, "inputs": [VALUE]}, {"name": "PATH"}, {"name": "PATHb"}]',
              "parameters": '{"w": {"shape": VALUE}}', "file": "VALUE"},
    "layers": {"layers": '{"w": {"parameter": {"norm": VALUE, "counts": [VALUE]}, "gradient": VALUE}}'},
    "profile": {"operators": '[{"name": VALUE, "milliseconds": 1, "calls": VALUE}]', "steps": "VALUE"},
    "samples": {"samples": '[{"shape": [1], "values": [VALUE]}, {"shape": VALUE}, VALUE]', "input": "VALUE"},
    "confusion": {"counts": "[[VALUE]]", "rows": "VALUE"},
    "regression": {
        "points": '{"expected": [VALUE], "predicted": [VALUE], "row": [VALUE]}',
        "samples": "[VALUE]",
        "error": "VALUE",
        "rows": "VALUE",
    },
    "projection": {
        "of": '{"inputs": {"points": [[VALUE, 1], VALUE], "variance": [VALUE]}, "outputs": VALUE}',
        "expected": "[VALUE]",
        "row": "[1]",
    },
}  # fmt: skip


@pytest.mark.parametrize("depth", [3, 400, 900])
@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, values in DETAILS.items() for name in values]
)
def test_details_nested_deep(serve, tmp_path, depth, kind, name):
    value = DETAILS[kind][name].replace("VALUE", nested(depth)).replace("PATH", "a/" * depth)
    entry = {"event": kind, "step": 1, "epoch": 0}
    write(tmp_path / "bad.jsonl", begin(), step(1), line(entry, name, value), step(2))
    client = serve(tmp_path)
    run = client.runs()["bad.jsonl"]
    assert run["step"] == 2
    for view in VIEWS:
        assert client.ask(f"/api/{view}?run={run['key']}&name=w").status == 200


def test_numbers_of_thousands_of_digits(serve, tmp_path):
    most = 10**4000  # Python reads no number of more than 4,300 digits
    write(
        tmp_path / "log.jsonl", begin(time=most, parameters=most, settings={"a": most}), {**step(1), "step": most}, step(1, most),
        step(1 << 60), step(2, elapsed=most), line(step(3), "loss", "9" * 100_000), step(4),
        {"event": "end", "step": 4, "epoch": 0, "time": most, "status": "failed", "error": most},
    )  # fmt: skip
    client = serve(tmp_path)
    run = client.runs()["log.jsonl"]
    assert [problem.partition(":")[0] for problem in run["problems"]] == ["line 2", "line 4", "line 6"]
    series = client.ask(f"/api/series?run={run['key']}&series=step.loss").json["series"]["step.loss"]
    assert (series["step"], series["not_finite"]) == ([2, 4], 1)


@pytest.mark.parametrize(
    "bad", [b"\xff\xff", b"\x00\x00\x00", b'{"event": "step", "x": "\xff"}', b"{" * 1000, b"\x00" * 5000]
)  # fmt: skip
def test_bytes_that_are_no_text(tmp_path, bad):
    path = tmp_path / "log.jsonl"
    write(path, begin(), step(1))
    with path.open("ab") as file:
        file.write(bad + b"\n" + json.dumps(step(2)).encode() + b"\n")
    log = Log(path)
    log.refresh()
    assert log.step == 2
    assert log.problems == [(3, "it is not JSON")]


@pytest.mark.parametrize("failing", ["refresh", "series", "begin"])
def test_any_failure_of_a_file_is_that_files(serve, tmp_path, failing, monkeypatch):
    write(tmp_path / "bad.jsonl", begin(), step(1))
    write(tmp_path / "good.jsonl", begin(), step(1))
    client = serve(tmp_path)
    assert set(client.runs()) == {"bad.jsonl", "good.jsonl"}
    log = client.server.runs._logs["bad.jsonl"]

    class Broken:
        def __call__(self, *_):
            raise AttributeError("broken")

        __getattr__ = __iter__ = __call__

    monkeypatch.setattr(log, failing, Broken())
    for _ in range(2):
        found = client.ask("/api/runs").json
        assert [run["file"] for run in found["runs"]] == ["good.jsonl"]
        assert found["others"] == ["bad.jsonl: AttributeError: broken"]
    monkeypatch.undo()
    client.server.runs._next_search = 0
    assert set(client.runs()) == {"bad.jsonl", "good.jsonl"}
    assert client.ask("/api/runs").json["others"] == []


def test_a_view_that_fails_names_the_file(serve, tmp_path, monkeypatch):
    write(tmp_path / "bad.jsonl", begin(), step(1))
    client = serve(tmp_path)
    key = client.runs()["bad.jsonl"]["key"]
    monkeypatch.setattr("ortrain.dashboard.details.layers", lambda log: 1 // 0)
    answer = client.ask(f"/api/layers?run={key}")
    assert answer.status == 500
    assert answer.json["error"].startswith("bad.jsonl: ZeroDivisionError")
    assert client.ask(f"/api/series?run={key}").status == 200


@needs_links
def test_links_that_lead_to_themselves(tmp_path):
    write(tmp_path / "good.jsonl", begin(), step(1))
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    found = Runs(tmp_path)
    found.refresh()
    assert [run["file"] for run in found.describe()] == ["good.jsonl"]
    assert [other.partition(":")[0] for other in found.others] == ["loop.jsonl"]


def test_others_are_answered_while_a_log_is_read(serve, tmp_path, monkeypatch):
    """The disk of a log is slow: what has been read of it, and of others, is shown meanwhile."""
    monkeypatch.setattr(logs, "_CHUNK", 4000)
    monkeypatch.setattr(runs_module, "_SECONDS_OF_READING", 0.2)
    write(tmp_path / "slow.jsonl", begin(), *(step(n) for n in range(1, 200)))
    write(tmp_path / "good.jsonl", begin(), step(1))
    client = serve(tmp_path)
    runs = client.runs()
    write(tmp_path / "slow.jsonl", *(step(n) for n in range(200, 400)), mode="a")
    waits, goes_on = threading.Event(), threading.Event()
    opened = logs.open_file

    class Slow:
        def __init__(self, file):
            self.file, self.chunks = file, 0

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def __getattr__(self, name):
            return getattr(self.file, name)

        def read(self, count):
            self.chunks += count == 4000
            if self.chunks == 3:
                waits.set()
                assert goes_on.wait(60)
            return self.file.read(count)

    monkeypatch.setattr(
        logs, "open_file", lambda path: Slow(opened(path)) if path.name == "slow.jsonl" else opened(path)
    )
    reading = threading.Thread(target=client.runs)
    reading.start()
    assert waits.wait(60)
    try:
        for name in ("good.jsonl", "slow.jsonl"):
            answer = client.ask(f"/api/series?run={runs[name]['key']}&series=step.loss")
            assert answer.status == 200
        assert 199 < answer.json["series"]["step.loss"]["total"] < 399
        assert set(client.runs()) == {"good.jsonl", "slow.jsonl"}
    finally:
        goes_on.set()
        reading.join()


def test_all_logs_get_their_turn(tmp_path, monkeypatch):
    """Also those behind logs that take all the time."""
    monkeypatch.setattr(runs_module, "_SECONDS_OF_READING", 0)
    for name in "abc":
        write(tmp_path / f"{name}.jsonl", begin(), step(1))
    found = Runs(tmp_path)
    monkeypatch.setattr(runs_module.time, "monotonic", iter(range(10**6)).__next__)
    order = []
    monkeypatch.setattr(found, "_read_one", lambda name, seconds: order.append(name))
    for _ in range(8):
        monkeypatch.setattr(runs_module, "_SECONDS_OF_READING", 3)
        found._search()
        found._read()
    assert {order.count(f"{name}.jsonl") for name in "abc"} <= {len(order) // 3, len(order) // 3 + 1}
    assert len(order) >= 8


def test_a_line_of_many_parts_is_read_in_any_time(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "_CHUNK", 100)
    path = tmp_path / "log.jsonl"
    write(path, begin(), step(1), step(2, note="x" * 5000), step(3))
    log = Log(path)
    for _ in range(10):
        log.refresh(seconds=0)
    assert log.complete
    assert log.step == 3
    assert log.bad_lines == 0


def test_a_last_line_without_end_is_read_once(tmp_path, monkeypatch):
    path = tmp_path / "log.jsonl"
    write(path, begin(), step(1), '{"event": "step", "step": 2', end="")
    log = Log(path)
    log.refresh()
    monkeypatch.setattr(log, "_read_lines", lambda *_: pytest.fail("nothing is new"))
    assert not log.refresh()


def test_a_line_with_too_many_lists_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "_MOST_OBJECTS", 100)
    path = tmp_path / "log.jsonl"
    write(path, begin(), step(1, x=[[]] * 200), step(2))
    log = Log(path)
    log.refresh()
    assert log.problems == [(2, "it has more than 100 lists and objects")]
    assert log.step == 2


def test_details_are_bounded(tmp_path, monkeypatch):
    """300,000 lines with samples kept the server busy for seconds. Some of them stay, the last one always."""
    monkeypatch.setattr(logs, "_MOST_PLACES", 100)
    path = tmp_path / "log.jsonl"
    entries = [{"event": "samples", "step": n, "epoch": n // 10, "samples": []} for n in range(1, 1001)]
    write(path, begin(), *entries)
    log = Log(path)
    log.refresh()
    steps = [step for step, _ in log.validations]
    assert 50 <= len(steps) <= 100
    assert steps[-1] == 1000
    assert steps[0] < 100
    assert log.detail(log.details["samples"][0])["step"] == steps[0]
    write(path, {"event": "samples", "step": 1001, "epoch": 100, "samples": []}, mode="a")
    log.refresh()
    assert log.validations[-1] == (1001, 100)


def test_values_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "_MOST_VALUES", 1000)
    path = tmp_path / "log.jsonl"
    write(path, begin(), *(step(n, float(n), other=1.0) for n in range(1, 5001)))
    log = Log(path)
    log.refresh()
    series = log.series["step.loss"]
    assert 200 <= len(series.step) <= 500
    assert len(series.step) == len(series.value) == len(series.elapsed)
    assert list(series.step) == list(series.value) == sorted(series.step)
    assert series.step[-1] == 5000


def test_many_settings_and_series(serve, tmp_path):
    names = {f"k{n}": 1.0 for n in range(5000)}
    write(tmp_path / "log.jsonl", begin(settings=names), step(1, **names))
    run = serve(tmp_path).runs()["log.jsonl"]
    assert len(run["series"]) == 1000
    assert len(run["settings"]) == 200


def test_a_file_that_shrinks_while_it_is_read(tmp_path):
    path = tmp_path / "log.jsonl"
    write(path, begin(), *(step(n) for n in range(1, 1000)))
    log = Log(path)
    log.refresh()
    os.truncate(path, 200)
    log.refresh()
    assert log.step < 5
    assert log.lines < 5
    os.truncate(path, 0)
    log.refresh()
    assert not log.is_run
