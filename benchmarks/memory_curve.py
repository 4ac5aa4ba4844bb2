"""Measure the cost of a memory budget: the memory and time of a step for smaller and smaller budgets.

`python -m benchmarks.memory_curve resnet18 bert-mini` trains each case with the session config entry
`ortrain.memory_budget` at several fractions of the memory of a step without a budget, down to the smallest possible budget. All
sessions of a case take turns in one process; their first losses must be bitwise equal. The command prints a
table and writes a plot. The artifacts are those of `make bench`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from time import perf_counter

from benchmarks.cases import LEARNING_RATE, Case, make_batches, model_files, select

WARMUP = 2
NO_BUDGET = 0


@dataclass
class Point:
    """One budget.

    Attributes
    ----------
    budget : bytes; 0 for none.
    arena : bytes of the block for intermediate values.
    step : trains one step and returns the loss.
    losses, ms : of the first steps, and of the timed ones.
    """

    budget: int
    arena: int
    step: Callable[[], float]
    losses: list[float] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)

    @property
    def best_ms(self) -> float:
        return min(self.ms)


def prepare(case: Case, cache: Path, threads: int, budget: int) -> Point:
    """Create a session with the budget and train one step.

    Raises
    ------
    ortrain.OrtrainError
        The budget is rejected; the message names the least.
    """
    from ortrain import SessionOptions
    from ortrain.api import CheckpointState, Module, Optimizer

    folder = model_files(cache, case).artifacts("ortrain")
    options = SessionOptions()
    options.intra_op_num_threads = threads
    if budget:
        options.add_session_config_entry("ortrain.memory_budget", str(budget))
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, session_options=options)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(LEARNING_RATE)
    batches = cycle(make_batches(case))

    def step() -> float:
        loss = module(*next(batches))
        optimizer.step()
        module.lazy_reset_grad()
        return float(loss)

    module.start_profiling()
    first = step()
    trace = json.loads(module.end_profiling())
    arena = next(e["args"]["arena_bytes"] for e in trace["traceEvents"] if e["name"] == "train step")
    return Point(budget, arena, step, [first, *(step() for _ in range(WARMUP))])


def least_budget(case: Case, cache: Path, threads: int) -> int:
    """Return the smallest possible budget, as reported by the error for a budget of one byte."""
    from ortrain import OrtrainError

    try:
        prepare(case, cache, threads, 1)
    except OrtrainError as error:
        found = re.search(r"at least (\d+) bytes", str(error))
        if found is None:
            raise
        return int(found[1])
    raise RuntimeError("expected an error for a budget of one byte, found none")


def measure(case: Case, cache: Path, threads: int, shares: Sequence[float], rounds: int) -> list[Point]:
    """Return a point without a budget, one for each possible fraction of its memory, and the least."""
    whole = prepare(case, cache, threads, NO_BUDGET)
    least = least_budget(case, cache, threads)
    budgets = [int(share * whole.arena) for share in sorted(shares, reverse=True)]
    points = [whole]
    points += [prepare(case, cache, threads, b) for b in [*(b for b in budgets if b > least), least]]
    for point in points:
        if point.losses != whole.losses:
            raise SystemExit(
                f"{case.name}: with a budget of {point.budget} bytes the losses differ: "
                f"{point.losses}, without one {whole.losses}"
            )
    for _ in range(rounds):
        for point in points:
            start = perf_counter()
            point.step()
            point.ms.append((perf_counter() - start) * 1e3)
    return points


def table(case: Case, points: Sequence[Point]) -> str:
    """Return the points as a table in Markdown."""
    whole = points[0]
    lines = [
        f"| {case.name}, batch {case.batch}: budget | memory of the step | of all | step, ms | time |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for point in points:
        budget = f"{point.budget / 1e6:.1f} MB" if point.budget else "none"
        lines.append(
            f"| {budget} | {point.arena / 1e6:.1f} MB | {point.arena / whole.arena:.0%} | "
            f"{point.best_ms:.0f} | {point.best_ms / whole.best_ms:.2f} |"
        )
    return "\n".join(lines)


def plot(curves: Sequence[tuple[Case, Sequence[Point]]], file: Path) -> None:
    """Draw time over memory, both relative to a step without a budget."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for case, points in curves:
        whole = points[0]
        axes.plot(
            [100 * p.arena / whole.arena for p in points],
            [p.best_ms / whole.best_ms for p in points],
            marker="o",
            label=f"{case.name}, batch {case.batch}: {whole.arena / 1e6:.0f} MB",
        )
    axes.set_xlabel("memory of the step, % of that without a budget")
    axes.set_ylabel("time of the step, relative")
    axes.invert_xaxis()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", help="cases or models, such as resnet18 and bert-mini")
    parser.add_argument("--cache", type=Path, default=Path("build/bench"), help="artifacts of `make bench`")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--rounds", type=int, default=10, help="timed steps of each budget; the shortest step counts"
    )
    parser.add_argument(
        "--shares",
        type=lambda text: [float(part) for part in text.split(",")],
        default=[0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3],
        help="budgets, as fractions of the memory without a budget; impossible budgets are left out",
    )
    parser.add_argument("--plot", type=Path, help="file for the plot")
    arguments = parser.parse_args()
    curves = []
    for case in select(arguments.models):
        if not model_files(arguments.cache, case).artifacts("ortrain").is_dir():
            sys.exit(f"no artifacts of {case.name} below {arguments.cache}; run `make bench` first")
        points = measure(case, arguments.cache, arguments.threads, arguments.shares, arguments.rounds)
        print(table(case, points), end="\n\n")
        curves.append((case, points))
    if arguments.plot:
        plot(curves, arguments.plot)
        print(f"plot: {arguments.plot}")


if __name__ == "__main__":
    main()
