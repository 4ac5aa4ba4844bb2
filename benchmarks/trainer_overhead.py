"""Measure the time that `Trainer.fit` adds to a step of the equivalent loop: ``python -m benchmarks.trainer_overhead``.

`Trainer.fit` and the loop take turns on a model whose step is so short that the difference is visible. The result is the
difference of processor time per step, as the median over the rounds. The exit status is 1 if the result is more than 20
microseconds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import ortrain
from ortrain import Trainer

LIMIT = 20e-6
ARTIFACTS = Path(ortrain.__file__).parent / "demo_data/artifacts"


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000, help="steps of a turn (default 1000)")
    parser.add_argument("--rounds", type=int, default=11, help="turns of each (default 11)")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    batches = [(rng.random((1, 1, 8, 8), np.float32), rng.integers(0, 10, 1)) for _ in range(options.steps)]
    trainer = Trainer(ARTIFACTS, threads=1)
    module, optimizer = trainer.module, trainer.optimizer

    def loop() -> float:
        began = time.thread_time()
        total = 0.0
        for batch in batches:
            total += float(module(*batch)[0])
            optimizer.step()
            module.lazy_reset_grad()
        return time.thread_time() - began

    def fit() -> float:
        began = time.thread_time()
        trainer.fit(batches, prefetch=0, verbose=False)
        return time.thread_time() - began

    loop(), fit()
    pairs = [(loop(), fit()) for _ in range(options.rounds)]
    added = statistics.median((with_trainer - alone) / options.steps for alone, with_trainer in pairs)
    step = statistics.median(alone for alone, _ in pairs) / options.steps
    print(
        f"a step of the loop: {step * 1e6:.1f} us; the trainer adds {added * 1e6:.1f} us (at most {LIMIT * 1e6:.0f})"
    )
    return 0 if added <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
