"""A rank that dies, hangs or fails is named by the others, which end in time; the last checkpoint stays whole."""

from __future__ import annotations

import pathlib
import time

import pytest
from launch import mpiexec
from modules import Alone, write_artifacts

pytest.importorskip("mpi4py")
PROGRAM = pathlib.Path(__file__).parent / "lose_a_rank.py"
TIMEOUT = 4.0


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("hangs", "all-reduce of the gradients: rank 1 did not answer within"),
        ("dies", "rank 1 did not answer within"),
        ("raises", "rank 1 failed: InvalidArgumentError"),
        ("exits", "rank 1 has ended"),
        ("raises_outside", "rank 1 has ended"),
    ],
)
def test_the_others_end_in_time_and_name_the_rank(tmp_path: pathlib.Path, how: str, message: str) -> None:
    write_artifacts(tmp_path)
    started = time.monotonic()
    done = mpiexec(3, PROGRAM, tmp_path, how, str(TIMEOUT), seconds=40, cleans_up=how != "dies")
    took = time.monotonic() - started
    assert done.returncode != 0
    reports = [line for line in done.stderr.splitlines() if "LostRankError" in line]
    assert any(message in line for line in reports), done.stdout + done.stderr
    assert all("rank 1" in line for line in reports)
    assert took < 25
    # The checkpoint is that of the last save, whole.
    alone = Alone(tmp_path, "saved")
    assert dict(alone.state.properties)["step"] == 2
    alone.train(1)
