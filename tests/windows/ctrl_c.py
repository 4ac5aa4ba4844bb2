"""Ctrl-C ends a training run, which saves a checkpoint: run with the installed package in a console of Windows.

The run that is resumed from the checkpoint ends with the same bits as a run without Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from pathlib import Path

from letters_in_pipes import COMMAND, ENVIRONMENT, call

OPTIONS = ["artifacts", "--data", "data.csv", "--batch", "8", "--epochs", "300"]


def interrupted_run(folder: str) -> str:
    """Start a run, send it Ctrl-C after its first epoch, and return what it printed after that."""
    process = subprocess.Popen(
        [*COMMAND, "train", *OPTIONS, "--from-start"],
        cwd=folder,
        env=ENVIRONMENT | {"PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stderr is not None
    before = ""
    while "epoch 1/" not in before:
        line = process.stderr.readline()
        assert line, before
        before += line
    os.kill(0, signal.CTRL_C_EVENT)  # to all programs of this console
    printed = process.communicate(timeout=60)[1]
    assert process.returncode == 130, printed
    return printed


def main() -> None:
    signal.signal(signal.SIGINT, lambda *_: None)  # this program is one of those that get Ctrl-C
    with tempfile.TemporaryDirectory() as folder:
        rows = [f"{number},{number % 3},{'abc'[number % 3]}" for number in range(60)]
        Path(folder, "data.csv").write_text("\n".join(["length,width,kind", *rows, ""]))
        call(folder, "train", "--data", "data.csv")
        call(folder, "train", *OPTIONS, "--from-start", "--out", "whole")
        Path(folder, "artifacts", "last.ckpt").rename(Path(folder, "whole.ckpt"))
        printed = interrupted_run(folder)
        assert "saved" in printed, printed
        assert "Traceback" not in printed, printed
        checkpoints = list(Path(folder).glob("artifacts/runs/*/interrupted.ckpt"))
        assert len(checkpoints) == 1, printed
        call(folder, "train", *OPTIONS, "--resume", str(checkpoints[0]))
        call(folder, "diff", "whole.ckpt", str(Path("artifacts", "last.ckpt")))
    print("ok: Ctrl-C ends a training run, which another run completes with the same bits")


if __name__ == "__main__":
    main()
