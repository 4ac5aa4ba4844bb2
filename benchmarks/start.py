"""Measure the time from the start of a program to the end of its first step: `python -m benchmarks.start --help`.

Several new processes import the package, load the artifacts and take a step. The benchmark measures the time from `import
ortrain` to the end of the first step; the table shows the start of Python and the import of numpy separately.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.cases import select
from benchmarks.contestants import OURS, by_name
from benchmarks.runner import ROOT, Settings, environment, export_model

PARTS = ("python and numpy", "import", "load", "first step", "second step")

PROGRAM = """
import sys
from time import perf_counter, time
began = float(sys.argv[1])
import numpy as np
from benchmarks.cases import make_batches, select
case = select([sys.argv[2]])[0]
(images, labels), *_ = make_batches(case)
loaded = time() - began
marks = [perf_counter()]
from ortrain import SessionOptions
from ortrain.api import CheckpointState, Module, Optimizer
marks.append(perf_counter())
folder = sys.argv[3]
options = SessionOptions()
options.intra_op_num_threads = int(sys.argv[4])
state = CheckpointState.load_checkpoint(f"{folder}/checkpoint")
module = Module(f"{folder}/training_model.onnx", state, session_options=options)
optimizer = Optimizer(f"{folder}/optimizer_model.onnx", module)
marks.append(perf_counter())
for _ in range(2):
    module(images, labels)
    optimizer.step()
    module.lazy_reset_grad()
    marks.append(perf_counter())
import json
print(json.dumps([loaded, *(after - before for before, after in zip(marks, marks[1:]))]))
"""


def measure(name: str, folder: Path, threads: int) -> list[float]:
    """Return the milliseconds of each part in a fresh process."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(time.time()), name, str(folder), str(threads)],
        cwd=ROOT,
        env=environment(threads, folder),
        capture_output=True,
        text=True,
        check=True,
    )
    return [seconds * 1e3 for seconds in json.loads(ran.stdout)]


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.start", description=__doc__)
    parser.add_argument("--models", help="names, separated by commas (default: all)")
    parser.add_argument("--threads", type=int, default=2, metavar="N")
    parser.add_argument(
        "--rounds", type=int, default=9, metavar="N", help="processes for each model (default: 9)"
    )
    options = parser.parse_args()
    cache = ROOT / "build" / "bench"
    cache.mkdir(parents=True, exist_ok=True)
    settings = Settings(cache, ROOT / ".venv-peers", options.threads, 1, None)
    print(f"{'model, median ms':<18}" + "".join(f"{part:>18}" for part in PARTS) + f"{'import to step':>18}")
    for case in select(options.models.split(",") if options.models else []):
        export_model(case, settings)
        folder = cache / case.model / f"artifacts-{OURS}"
        if not folder.exists():
            by_name(OURS).make_trainer().make_artifacts(case, cache)
        rounds = [measure(case.name, folder, options.threads) for _ in range(options.rounds)]
        medians = [statistics.median(part) for part in zip(*rounds, strict=True)]
        total = statistics.median(sum(r[1:4]) for r in rounds)
        print(f"{case.name:<18}" + "".join(f"{ms:>18.1f}" for ms in medians) + f"{total:>18.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
