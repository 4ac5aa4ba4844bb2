"""A rank that dies, hangs or fails is named by the others, which end in time; the last checkpoint stays whole."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from launch import mpiexec
from modules import Alone, write_artifacts

pytestmark = pytest.mark.thorough

pytest.importorskip("mpi4py")
PROGRAM = pathlib.Path(__file__).parent / "lose_a_rank.py"
TIMEOUT = 4.0


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("hangs", "all-reduce of the gradients: rank 1 did not answer within"),
        ("freezes", "rank 1 did not answer within"),
        ("raises", "rank 1 failed: InvalidArgumentError"),
        ("exits", "rank 1 has ended"),
        ("raises_outside", "rank 1 has ended"),
    ],
)
def test_the_others_end_in_time_and_name_the_rank(tmp_path: pathlib.Path, how: str, message: str) -> None:
    write_artifacts(tmp_path)
    started = time.monotonic()
    done = mpiexec(3, PROGRAM, tmp_path, how, str(TIMEOUT), seconds=40)
    took = time.monotonic() - started
    assert done.returncode != 0
    reports = {path.name: path.read_text() for path in tmp_path.glob("report of *")}
    assert any(message in text for text in reports.values()), done.stdout + done.stderr
    assert all(text.startswith("(1,)") and "rank 1" in text for text in reports.values()), reports
    assert took < 25
    assert_saved(tmp_path)


def test_mpi_ends_all_where_one_is_killed(tmp_path: pathlib.Path) -> None:
    """Its launcher says so. It kills the others a moment later, so that they cannot name the rank."""
    write_artifacts(tmp_path)
    started = time.monotonic()
    done = mpiexec(3, PROGRAM, tmp_path, "dies", "60", seconds=40)
    assert time.monotonic() - started < 25  # of the timeout of 60 seconds
    assert done.returncode != 0
    assert "Killed (signal 9)" in done.stdout + done.stderr
    reports = [path.read_text() for path in tmp_path.glob("report of *")]
    assert all(text.startswith("(1,)") for text in reports), reports
    for rank in (0, 2):
        assert not running(int((tmp_path / f"process of {rank}").read_text()))
    assert_saved(tmp_path)


def test_a_rank_that_is_killed_is_named_by_the_process_that_waits_for_it(tmp_path: pathlib.Path) -> None:
    write_artifacts(tmp_path)
    started = time.monotonic()
    done = mpiexec(3, "-m", "ortrain.distributed", PROGRAM, tmp_path, "dies", "60", seconds=40)
    assert time.monotonic() - started < 25
    assert done.returncode != 0
    killed = (tmp_path / "process of 1").read_text()
    assert f"rank 1 (process {killed}) was killed by signal 9 (SIGKILL)" in done.stderr, done.stderr
    deadline = time.monotonic() + 5
    for rank in (0, 1, 2):
        while running(int((tmp_path / f"process of {rank}").read_text())):
            assert time.monotonic() < deadline, f"rank {rank} is left behind"
            time.sleep(0.05)
    assert_saved(tmp_path)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_waiting_process_ends_by_the_signal_that_ended_its_program(
    tmp_path: pathlib.Path, how: signal.Signals
) -> None:
    """Else MPICH's launcher may leave the other ranks to wait: a status that it reads first ends nobody."""
    program = tmp_path / "program.py"
    program.write_text(f"import os\nos.kill(os.getpid(), {int(how)})\n")
    done = subprocess.run(
        [sys.executable, "-m", "ortrain.distributed", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == -how
    assert f"was killed by signal {int(how)} ({how.name})" in done.stderr


def test_a_program_under_a_waiting_process_ends_with_its_own_status(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import pathlib, sys\n"
        "from mpi4py import MPI\n"
        "world = MPI.COMM_WORLD\n"
        "pathlib.Path(sys.argv[1], f'{world.rank}').write_text(f'{sys.argv[2:]} {world.allreduce(1)}')\n"
    )
    done = mpiexec(2, "-m", "ortrain.distributed", program, tmp_path, "a", "--b")
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / str(rank)).read_text() for rank in (0, 1)] == ["['a', '--b'] 2"] * 2
    program.write_text("import sys\nsys.exit(3)\n")
    assert mpiexec(1, "-m", "ortrain.distributed", program).returncode == 3
    assert "usage:" in mpiexec(1, "-m", "ortrain.distributed").stderr


def running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def assert_saved(tmp_path: pathlib.Path) -> None:
    """The checkpoint is that of the last save, whole."""
    alone = Alone(tmp_path, "saved")
    assert dict(alone.state.properties)["step"] == 2
    alone.train(1)
