"""Threads that wait for each other leave the processor to others when they should, and no second pool exists."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from recorded import Fixture

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the threads of builds with GCC")

PROGRAM = """
    import os, sys, time
    import numpy as np
    from ortrain import SessionOptions
    from ortrain.api import CheckpointState, Module, Optimizer

    def count_threads():
        return len(os.listdir("/proc/self/task"))

    folder, threads, pause, *entries = sys.argv[1:]
    with np.load(f"{folder}/batches.npz") as batches:
        x, y = np.tile(batches["x0"], (16, 1, 1, 1)), np.tile(batches["y0"], 16)  # enough for several threads
    options = SessionOptions()
    options.intra_op_num_threads = int(threads)
    for entry in entries:
        options.add_session_config_entry(*entry.split("="))
    state = CheckpointState.load_checkpoint(f"{folder}/checkpoint")
    before = count_threads()
    module = Module(f"{folder}/training_model.onnx", state, session_options=options)
    optimizer = Optimizer(f"{folder}/optimizer_model.onnx", module)
    spent = passed = 0.0
    for step in range(300):
        module(x, y)
        optimizer.step()
        module.lazy_reset_grad()
        begun, others = time.perf_counter(), time.process_time() - time.thread_time()
        while time.perf_counter() < begun + float(pause):
            pass
        passed += time.perf_counter() - begun
        spent += time.process_time() - time.thread_time() - others
    print(count_threads() - before, spent / passed)
"""


def trained(
    entries: list[str], environment: dict[str, str], threads: int = 2, pause: float = 0
) -> tuple[int, float]:
    """Train in a process; return the threads that it started, and their processor time in the pauses of the caller.

    That time is a share of the pauses, which follow each step.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    arguments = [Fixture("resnet_bn").folder, str(threads), str(pause), *entries]
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**env, **environment},
        timeout=60,
    )
    count, share = ran.stdout.split()
    return int(count), float(share)


@pytest.mark.first_case
@pytest.mark.parametrize("threads", [1, 3])
def test_all_kernels_share_the_threads_of_a_session(threads: int) -> None:
    assert trained([], {}, threads)[0] == threads - 1


def test_a_session_uses_the_threads_that_the_environment_allows() -> None:
    assert trained([], {"OMP_NUM_THREADS": "4"}, threads=0)[0] == 3
    assert trained([], {"OMP_THREAD_LIMIT": "2"}, threads=4)[0] == 1


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("entries", "environment"),
    [
        (["session.intra_op.allow_spinning=0"], {}),
        (["session.force_spinning_stop=1"], {}),
        ([], {"OMP_WAIT_POLICY": "passive"}),
    ],
)
def test_threads_that_must_not_spin_leave_the_processor(
    entries: list[str], environment: dict[str, str]
) -> None:
    count, share = trained(entries, environment, pause=2e-4)
    assert count == 1
    assert share < 0.5


@pytest.mark.thorough
def test_threads_sleep_soon_after_a_run() -> None:
    assert trained([], {}, pause=5e-3)[1] < 0.3


@pytest.mark.parametrize("entry", ["session.intra_op.allow_spinning=2", "session.force_spinning_stop=yes"])
def test_other_values_are_rejected(entry: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        trained([entry], {})
    key, value = entry.split("=")
    assert key in failed.value.stderr
    assert f"'{value}'" in failed.value.stderr
