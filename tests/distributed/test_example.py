"""The example of the older API learns the digits in two processes as in one."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import numpy as np
import pytest
from launch import run

pytest.importorskip("mpi4py")
PROGRAM = pathlib.Path(__file__).parents[2] / "examples" / "older_api" / "train.py"


def test_two_processes_learn_the_digits_as_one(tmp_path: pathlib.Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    alone = subprocess.Popen([sys.executable, PROGRAM, "--out", tmp_path / "one"], stdout=subprocess.DEVNULL)
    printed = run(2, PROGRAM, "--mpi", "--out", tmp_path / "two")
    assert printed.count("held-out digits are read right") == 1
    assert alone.wait(60) == 0
    with np.load(tmp_path / "one/halfway.npz") as one, np.load(tmp_path / "two/halfway.npz") as two:
        assert sorted(one.files) == sorted(two.files)
        for weight in ("W1", "b1", "W2", "b2"):
            np.testing.assert_allclose(two[weight], one[weight], rtol=0, atol=1e-3)
