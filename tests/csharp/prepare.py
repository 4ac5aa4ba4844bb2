"""Writes the data of the C# tests: the recorded runs of tests/data/fixtures, in a form that C# reads without a library.

python tests/csharp/prepare.py FOLDER: a folder for each run with its artifacts, its batches as tensor files (see
tests/scenarios/README.md) and `expected.txt`, a line `NAME NUMBER NUMBER ...` for each list of recorded values.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scenarios"))

from scenario_data import CASES, expected, prepare_fixture


def main(folder: Path) -> None:
    """Write the folders."""
    shutil.rmtree(folder, ignore_errors=True)
    for case in CASES:
        prepare_fixture(case, folder / case)
        recorded = expected(case)
        lists = {
            "train_losses": recorded["train_losses"],
            "learning_rates": recorded["learning_rates"],
            "eval_losses": recorded.get("eval_losses_after", []),
            # As it ran: the Python class of 1.19.2 passed the two counts in the wrong order.
            "schedule": [recorded["scheduler"][key] for key in ("total", "warmup", "initial_lr")]
            if recorded["scheduler"]
            else [],
        }
        lines = [" ".join([name, *map(repr, numbers)]) for name, numbers in lists.items()]
        (folder / case / "expected.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
