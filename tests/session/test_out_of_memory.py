"""Where memory runs out, the error says so: what was being done, for which node, and how large it is."""

from __future__ import annotations

import collections
import os
import pathlib
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
from ortrain.api import CheckpointState, Module
from recorded import Fixture
from system import needs_fork, needs_proc, resource

STEP, MOST = 400 << 10, 40 << 20
"""Bytes of addresses that a session and a step may use more than the process before them: at the most, all succeed."""


def limited(case: Fixture, more: int, said: list[str]) -> None:
    """Create a session and take a step with little memory; append the error, or "done"."""
    images, labels = np.zeros((512, 1, 8, 8), np.float32), np.zeros(512, np.int64)
    try:
        used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + more, used + more))
        state = CheckpointState.load_checkpoint(case.path("checkpoint"))
        module = Module(case.path("training_model.onnx"), state)
        module.train()
        module(images, labels)
        said.append("done")
    except BaseException as error:
        said.append(f"{type(error).__name__}: {error}")


def attempt(case: Fixture, more: int) -> str:
    """Try it in a child process; return its error, or "done"."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(write, 2)
        said: list[str] = []
        # A thread's stack has its addresses from the beginning. That of the process would have to grow, and where it
        # cannot, the system ends the process.
        thread = threading.Thread(target=limited, args=(case, more, said))
        thread.start()
        thread.join()
        os.write(write, "".join(said).encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    status = os.waitpid(child, 0)[1]
    return text if status == 0 else f"ended with status {status}: {text}"


@pytest.mark.thorough
@needs_proc
@needs_fork
def test_every_failure_for_lack_of_memory_says_so() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, __file__],
        check=True,
        timeout=500,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ).stdout
    found = collections.Counter(line for line in done.split("\0") if line)
    assert found.pop("done") > 0
    assert found, "no attempt failed"
    for text in found:
        assert re.search(r"(?i)memory", text), text


if __name__ == "__main__":
    for more in range(0, MOST, STEP):
        print(attempt(Fixture("lenet_adamw"), more), end="\0")
