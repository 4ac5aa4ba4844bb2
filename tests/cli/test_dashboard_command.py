"""The dashboard's command: what it prints, where it listens, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from ortrain.dashboard.runs import Runs


def test_a_run_appears_without_further_arguments(artifacts, train_npz, run):
    """Train twice with the defaults: the dashboard has both."""
    for rate in (0.05, 0.1):
        run("train", artifacts, "--data", train_npz, "--epochs", 2, "--lr", rate, "--metric", "accuracy")
    with started(artifacts) as (process, found):
        assert found["runs"] == 2
        assert found["port"] == int(found["url"].rstrip("/").rpartition(":")[2])
        with urllib.request.urlopen(f"{found['url']}api/runs", timeout=30) as answer:
            runs = json.load(answer)["runs"]
        assert sorted(float(run["settings"]["learning_rate"]) for run in runs) == [0.05, 0.1]
        newest = max(runs, key=lambda run: run["began"])
        assert (newest["file"], newest["state"]) == ("runs/2/log.jsonl", "complete")
        lines = [json.loads(line) for line in (artifacts / "runs/2/log.jsonl").read_text().splitlines()]
        last = [line for line in lines if line["event"] == "epoch"][-1]
        assert newest["latest"]["epoch.accuracy"] == last["accuracy"]
        if os.name == "nt":  # no signal to another process
            return
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr.read() == "stopped\n"


class started:
    """The command in a separate process, with what it prints as JSON."""

    def __init__(self, folder, *arguments):
        self.command = [sys.executable, "-m", "ortrain", "dashboard", str(folder), "--json", *arguments]

    def __enter__(self):
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        return self.process, json.loads(self.process.stdout.readline())

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()


def test_two_at_once_and_a_port_in_use(tmp_path, run):
    with started(tmp_path) as (_, first), started(tmp_path) as (_, second):
        assert first["port"] != second["port"]
        assert first["runs"] == 0
        said = run("dashboard", tmp_path, "--port", first["port"], status=1).err
        assert f"cannot listen on port {first['port']}" in said
        assert "hint: " in said


def test_a_folder_that_is_not_there(tmp_path, run):
    said = run("dashboard", tmp_path / "x", status=1).err
    assert f"there is no folder {tmp_path / 'x'}" in said
    assert "`ortrain train` checkpoints and logs" in said
    assert "Error: " in run("dashboard", tmp_path, "--port", 70000, status=2).err


def test_it_prints_the_address_and_opens_the_page_if_asked(tmp_path, run, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or False)

    def interrupt(server, poll_interval):
        raise KeyboardInterrupt

    monkeypatch.setattr("ortrain.dashboard.Server.serve_forever", interrupt)
    ran = run("dashboard", tmp_path)
    assert ran.out.startswith(f"0 runs in {tmp_path}\nhttp://127.0.0.1:")
    assert opened == []
    ran = run("dashboard", tmp_path, "--open", "--port", 0)
    assert opened[0] in ran.out
    assert "found no browser" in ran.err


@pytest.mark.parametrize("port", [None, 0])
def test_it_listens_on_loopback_alone(tmp_path, port):
    with started(tmp_path, *([] if port is None else ["--port", str(port)])) as (_, found):
        with socket.create_connection(("127.0.0.1", found["port"]), timeout=10) as link:
            assert link.getpeername()[0] == "127.0.0.1"
        with socket.socket() as other, pytest.raises(ConnectionError):
            other.connect(("127.0.0.2", found["port"]))


def test_each_run_has_a_log_and_a_resumed_run_appends_to_its_own(artifacts, train_npz, run):
    train = ("train", artifacts, "--data", train_npz, "--epochs")
    run(*train, 1)
    run(*train, 1, "--samples", 0)
    run(*train, 2, "--resume", artifacts / "runs/1/epoch-1.ckpt")
    logs = sorted(path.relative_to(artifacts).as_posix() for path in artifacts.rglob("*.jsonl"))
    assert logs == ["runs/1/log.jsonl", "runs/2/log.jsonl"]
    for name, expected in zip(logs, ((2, 2), (1, 1)), strict=True):
        events = [json.loads(line)["event"] for line in (artifacts / name).read_text().splitlines()]
        assert (events.count("begin"), events.count("epoch")) == expected


def test_rows_are_left_out_of_the_log_if_asked(artifacts, train_npz, run):
    train = ("train", artifacts, "--data", train_npz, "--validation", 0.5)
    for number, (samples, found) in enumerate(((5, 1), (0, 0)), start=1):
        run(*train, "--samples", samples, "--from-start")
        lines = (artifacts / f"runs/{number}/log.jsonl").read_text().splitlines()
        events = [json.loads(line)["event"] for line in lines]
        assert events.count("samples") == found


def test_runs_have_names_which_resumed_runs_keep(artifacts, train_npz, run):
    train = ("train", artifacts, "--data", train_npz, "--epochs")
    said = run(*train, 1).out
    resumed = run(*train, 2, "--resume", artifacts / "runs/1/epoch-1.ckpt").out
    run(*train, 1, "--name", "wide layers")
    logs = Runs(artifacts)
    logs.refresh()
    first, second = sorted(logs.describe(), key=lambda found: found["file"])
    lines = [json.loads(line) for line in (artifacts / "runs/1/log.jsonl").read_text().splitlines()]
    names = [line["name"] for line in lines if line["event"] == "begin"]
    assert names == [first["name"]] * 2
    assert re.fullmatch("[a-z]+-[a-z]+", first["name"])
    for printed in (said, resumed):
        assert f"run {first['name']}, logs in {artifacts / 'runs/1'}" in printed
    assert second["name"] == "wide layers"
