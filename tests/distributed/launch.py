"""Starts programs in several processes, as a user would, and bounds their time."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

TESTS = pathlib.Path(__file__).parents[1]


def mpiexec(
    ranks: int, *command: str | pathlib.Path, seconds: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a Python program in `ranks` processes with one thread each."""
    launcher = pathlib.Path(sys.executable).parent / "mpiexec"
    paths = [str(TESTS), str(TESTS / "legacy"), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run(
        [launcher, "-l", "-n", str(ranks), sys.executable, *command],
        env=environment, capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip


def run(ranks: int, *command: str | pathlib.Path, seconds: float = 60) -> str:
    """Run a program that must succeed, and return what it printed."""
    done = mpiexec(ranks, *command, seconds=seconds)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
