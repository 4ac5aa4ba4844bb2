"""One contestant in a separate process, driven by lines of JSON.

`python -m benchmarks.worker CONTESTANT CASE --cache FOLDER --threads N` prints, once it is ready,
`{"version", "python", "baseline_mb", "prepare_s"}`. Each line `{"steps": n}` on its standard input trains
n steps, and the worker prints `{"ms": [...], "losses": [...], "peak_mb"}`. At the end of its standard input, the worker ends.
With `--make-artifacts`, it writes the contestant's artifacts and ends.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from itertools import cycle
from pathlib import Path
from time import perf_counter

from benchmarks.cases import make_batches, select
from benchmarks.contestants import by_name


def memory_mb(field: str) -> float:
    """Return a field of /proc/self/status in MiB: VmRSS is the resident memory now, VmHWM its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contestant")
    parser.add_argument("case")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--make-artifacts", action="store_true")
    arguments = parser.parse_args()

    # Output of the frameworks must not mix with the protocol: their standard output becomes standard error.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    (case,) = select([arguments.case])
    trainer = by_name(arguments.contestant).make_trainer()
    if arguments.make_artifacts:
        trainer.make_artifacts(case, arguments.cache)
        return

    batches = cycle(make_batches(case))
    baseline = memory_mb("VmRSS")
    start = perf_counter()
    step = trainer.prepare(case, arguments.cache, arguments.threads)
    ready = {
        "version": trainer.version,
        "python": platform.python_version(),
        "baseline_mb": baseline,
        "prepare_s": perf_counter() - start,
    }
    print(json.dumps(ready), file=replies)

    for line in sys.stdin:
        ms, losses = [], []
        for _ in range(json.loads(line)["steps"]):
            x, labels = next(batches)
            start = perf_counter()
            losses.append(step(x, labels))
            ms.append((perf_counter() - start) * 1e3)
        print(json.dumps({"ms": ms, "losses": losses, "peak_mb": memory_mb("VmHWM")}), file=replies)


if __name__ == "__main__":
    main()
