"""The processes of the federated example end with all that they have started, however the example ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from languages import ROOT

sys.path.insert(0, str(ROOT / "examples/federated"))
from processes import Failure, Processes, free_ports, listens

SLEEP = "import time; time.sleep(300)"
# A process whose child is in another session and, in the second case, has lost its parent.
PARENT = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True)"


def until(done, seconds=60):
    """Wait until something is so."""
    last = time.monotonic() + seconds
    while not done() and time.monotonic() < last:
        time.sleep(0.05)
    assert done()


@pytest.fixture
def processes(tmp_path):
    with Processes(tmp_path, dict(os.environ), 60) as started:
        yield started
    assert started.alive() == []


def test_one_is_killed_with_its_children_and_can_come_back(processes):
    for name in ("one", "two"):
        processes.start(name, sys.executable, "-c", f"{PARENT}; time.sleep(300)")
    until(lambda: len(processes.alive()) == 4)
    before = processes.alive("two")
    processes.kill("one")
    assert processes.alive("one") == []
    assert processes.alive() == before
    processes.start("one", sys.executable, "-c", SLEEP)
    until(lambda: len(processes.alive("one")) == 1)
    processes.end()
    assert processes.alive() == []
    assert not processes.running


def test_children_that_lost_their_parent_are_found(processes):
    processes.start("one", sys.executable, "-c", PARENT)
    until(lambda: processes.running["one"].poll() is not None and len(processes.alive()) == 1)
    processes.end()
    assert processes.alive() == []


def test_a_process_that_ends_early_is_named_with_the_end_of_its_log(processes):
    processes.start("node", sys.executable, "-c", "print('no such port'); raise SystemExit(3)")
    with pytest.raises(Failure, match=r"waiting for the end: node ended with status 3(.|\n)*no such port"):
        processes.wait("the end", lambda: False)


def test_waiting_is_bounded(processes):
    processes.start("node", sys.executable, "-c", SLEEP)
    processes.ends = time.monotonic() + 0.3
    with pytest.raises(Failure, match="waiting for the end: not done after 60 s"):
        processes.wait("the end", lambda: False)


def test_a_port_is_waited_for(processes):
    [port] = free_ports(1)
    assert not listens(port)
    processes.start("server", sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port))
    processes.wait("the server", lambda: listens(port))


PROGRAM = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT / "examples/federated")!r})
from pathlib import Path
from processes import Processes, signals_raise
with signals_raise(), Processes(Path(sys.argv[1]), dict(os.environ), 60) as processes:
    for name in ("one", "two"):
        processes.start(name, sys.executable, "-c", {f"{PARENT}; time.sleep(300)"!r})
    print(processes.mark, flush=True)
    while True:
        time.sleep(0.1)
"""


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda n: n.name
)
def test_nothing_is_left_after_a_signal(number, tmp_path, processes):
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    processes.mark = (
        program.stdout.readline().strip()
    )  # so that what it has started is found, and ended by the fixture
    until(lambda: len(processes.alive()) == 4)
    program.send_signal(number)
    program.wait(60)
    program.stdout.close()
    if number == signal.SIGKILL:  # it could do nothing; the kernel ends those that it has started itself
        until(lambda: len(processes.alive()) == 2)
        assert sorted([*processes.alive("one"), *processes.alive("two")]) == sorted(processes.alive())
    else:
        assert program.returncode == 128 + number
        assert processes.alive() == []
