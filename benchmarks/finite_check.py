"""Measure the cost of the check for NaN and infinite gradients: `python -m benchmarks.finite_check --help`.

Two sessions of one process train on the same artifacts and take turns: one session rejects such gradients, which is the
default; the other session applies gradients without a check (`ortrain.nonfinite_gradients` = `apply`). The cost is the
difference between the two times.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from time import perf_counter

from benchmarks.builds import batches
from benchmarks.scale import network

WARM_UP_S = 0.1


@dataclass(frozen=True)
class Cost:
    """One measurement.

    Attributes
    ----------
    name, batch, threads : what was trained; a batch of 0 is that of recorded data.
    step_ms : median of a step without the check, with its optimizer step.
    percent : median of what the check adds to it; quartiles are those of the turns.
    """

    name: str
    batch: int
    threads: int
    step_ms: float
    percent: float
    quartiles: tuple[float, float]


def session(folder: Path, batch: int, threads: int, check: str) -> Callable[[int], float]:
    """Return a function that takes a number of steps and returns their seconds."""
    import ortrain
    from ortrain import api

    options = ortrain.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("ortrain.nonfinite_gradients", check)
    state = api.CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = api.Module(str(folder / "training_model.onnx"), state, session_options=options)
    optimizer = api.Optimizer(str(folder / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(1e-5)
    module.train()
    data = cycle(batches(folder, batch))

    def train(steps: int) -> float:
        start = perf_counter()
        for _ in range(steps):
            module(*next(data))
            optimizer.step()
            module.lazy_reset_grad()
        return perf_counter() - start

    return train


def turns(
    folder: Path, batch: int, threads: int, rounds: int, seconds: float
) -> Iterator[tuple[float, float]]:
    """Yield the seconds of a step with and without the check, of turns beside each other."""
    sessions = [session(folder, batch, threads, check) for check in ("error", "apply")]
    steps = 1
    for train in sessions:
        spent = 0.0
        while spent < WARM_UP_S:
            spent += train(1)
    steps = max(1, round(seconds / min(sessions[1](1) for _ in range(3))))
    for number in range(rounds):
        pair = [0.0, 0.0]
        for i in (0, 1) if number % 2 == 0 else (1, 0):
            sessions[i](1)  # brings its data back into the caches
            pair[i] = sessions[i](steps) / steps
        yield pair[0], pair[1]


def measure(
    name: str, folder: Path, batch: int, threads: int, starts: int, rounds: int, seconds: float
) -> Cost:
    """Measure one model. Where a session's memory lies matters, so sessions are created several times."""
    pairs = [pair for _ in range(starts) for pair in turns(folder, batch, threads, rounds, seconds)]
    added = [(checked / unchecked - 1) * 100 for checked, unchecked in pairs]
    low, middle, high = statistics.quantiles(added, n=4, method="inclusive")
    step_ms = statistics.median(unchecked for _, unchecked in pairs) * 1e3
    recorded = (folder / "batches.npz").exists()
    return Cost(name, 0 if recorded else batch, threads, step_ms, middle, (low, high))


def make_mlp(width: int, optimizer: str, folder: Path) -> Path:
    """Write the artifacts of four dense layers of a width and one of ten classes."""
    from ortrain import artifacts

    model = network(width, hidden=4)
    artifacts.generate_artifacts(
        model,
        requires_grad=[tensor.name for tensor in model.graph.initializer],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType[optimizer],
        artifact_directory=folder,
    )
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.finite_check", description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="artifacts with a checkpoint")
    parser.add_argument(
        "--widths", type=int, nargs="*", default=(256, 1024), metavar="W", help="widths of dense layers"
    )
    parser.add_argument("--batches", type=int, nargs="+", default=(8, 64), metavar="B")
    parser.add_argument("--optimizers", nargs="+", default=("SGD", "AdamW"), metavar="NAME")
    parser.add_argument("--threads", type=int, nargs="+", default=(1, 2), metavar="N")
    parser.add_argument("--starts", type=int, default=5, help="pairs of sessions (default: 5)")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each pair (default: 10)")
    parser.add_argument("--seconds", type=float, default=0.1, help="seconds of a turn (default: 0.1)")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args(arguments)
    costs: list[Cost] = []
    print(f"{'model':32} {'batch':>6} {'threads':>7} {'step ms':>9} {'check':>7}  quartiles")
    with tempfile.TemporaryDirectory(prefix="ortrain-bench-") as scratch:
        cases = [(folder.name, folder) for folder in options.folders]
        for width in options.widths:
            for optimizer in options.optimizers:
                name = f"mlp-{width}-{optimizer}"
                cases.append((name, make_mlp(width, optimizer, Path(scratch) / name)))
        for name, folder in cases:
            recorded = (folder / "batches.npz").exists()
            for threads in options.threads:
                for batch in options.batches[:1] if recorded else options.batches:
                    cost = measure(
                        name, folder, batch, threads, options.starts, options.rounds, options.seconds
                    )
                    costs.append(cost)
                    low, high = cost.quartiles
                    print(
                        f"{name:32} {cost.batch or '':>6} {threads:>7} {cost.step_ms:9.3f} {cost.percent:6.2f}%  "
                        f"{low:.2f} to {high:.2f}",
                        flush=True,
                    )
    if options.json:
        options.json.write_text(json.dumps([asdict(cost) for cost in costs], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
