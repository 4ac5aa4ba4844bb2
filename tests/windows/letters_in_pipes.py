"""The output of commands is UTF-8 in files and pipes: run with the installed package on Windows.

The classes have letters that the encoding of Western languages lacks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import ortrain

CLASSES = "猫犬鳥"


COMMAND = [sys.executable, "-m", "ortrain"]
# In Wine, the given path may lack its drive.
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(ortrain.__file__).parents[1])}


def call(folder: str, *arguments: str) -> str:
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return (done.stdout + done.stderr).decode()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = [f"{number},{number % 3},{CLASSES[number % 3]}" for number in range(60)]
        Path(folder, "data.csv").write_text("\n".join(["長さ,幅,種", *rows, ""]), encoding="utf-8")
        assert "長さ (number)" in call(folder, "train", "--data", "data.csv", "--epochs", "2")
        predicted = call(folder, "predict", "artifacts", "--data", "data.csv")
        names = [line.split()[-1] for line in predicted.splitlines()[:60]]
        assert len(names) == 60
        assert set(names) <= set(CLASSES), ascii(predicted)
    print("ok: commands write letters of any language to pipes")


if __name__ == "__main__":
    main()
