"""Compare the speed of two builds: `python -m benchmarks.builds --help`.

Two installations of ortrain train on the same artifacts and take turns. The time of each turn is compared with the
time of the next turn, so that changes in the machine's speed do not affect the result.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.runner import ROOT, environment

WARM_UP_S = 0.5
NUMBERS = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16, 11: np.float64}
"""NumPy's types by those of ONNX."""


@dataclass(frozen=True)
class Turns:
    """How two builds are compared: the user's choices."""

    rounds: int = 15
    starts: int = 5
    seconds: float = 0.3
    batch: int = 8
    threads: int = 2
    config: Sequence[str] = ()
    """Entries of the session's configuration, as `key=value`."""


def batches(folder: Path, batch: int) -> list[list[NDArray[Any]]]:
    """Return inputs of the training model: those recorded in `batches.npz`, or random ones.

    Random floating-point numbers are normal; random integers are 0 or 1, which every vocabulary and set of classes
    has. A dimension without a number is `batch`.
    """
    recorded = folder / "batches.npz"
    if recorded.exists():
        arrays = np.load(recorded)
        return [[arrays[f"x{i}"], arrays[f"y{i}"]] for i in range(len(arrays.files) // 2)]
    import onnx

    graph = onnx.load(str(folder / "training_model.onnx"), load_external_data=False).graph
    state = {tensor.name for tensor in graph.initializer}
    from ortrain import api

    state |= {name for name, _ in api.CheckpointState.load_checkpoint(str(folder / "checkpoint")).parameters}
    rng = np.random.default_rng(0)
    inputs: list[NDArray[Any]] = []
    for value in graph.input:
        if (
            value.name in state
            or value.name.endswith("_grad.accumulation.buffer")
            or value.name == "lazy_reset_grad"
        ):
            continue
        kind = NUMBERS[value.type.tensor_type.elem_type]
        shape = [d.dim_value or batch for d in value.type.tensor_type.shape.dim]
        random = rng.standard_normal(shape) if np.issubdtype(kind, np.floating) else rng.integers(0, 2, shape)
        inputs.append(np.asarray(random, kind))
    return [inputs]


def work(folder: Path, turns: Turns) -> None:
    """Answer each line of the standard input, a number of steps, with the seconds that they took."""
    import ortrain
    from ortrain import api

    options = ortrain.SessionOptions()
    options.intra_op_num_threads = turns.threads
    for entry in turns.config:
        options.add_session_config_entry(*entry.split("=", 1))
    state = api.CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = api.Module(str(folder / "training_model.onnx"), state, session_options=options)
    optimizer = api.Optimizer(str(folder / "optimizer_model.onnx"), module)
    module.train()
    data = cycle(batches(folder, turns.batch))
    print("ready", flush=True)
    for line in sys.stdin:
        start = perf_counter()
        for _ in range(int(line)):
            module(*next(data))
            optimizer.step()
            module.lazy_reset_grad()
        print(perf_counter() - start, flush=True)


class Build:
    """A process that trains with one installation: an interpreter that has it, or a folder to import it from."""

    def __init__(self, installation: Path, folder: Path, turns: Turns, scratch: str) -> None:
        self.log = Path(scratch) / f"{folder.name}.log"
        env = environment(turns.threads, Path(scratch))
        if installation.is_dir():
            env["PYTHONPATH"] = str(installation)
        python = sys.executable if installation.is_dir() else str(installation)
        choices = ["--worker", "--batch", str(turns.batch), "--threads", str(turns.threads)]
        choices += [f"--config={entry}" for entry in turns.config]
        self.process = subprocess.Popen(
            [python, "-m", "benchmarks.builds", str(folder), *choices],
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            text=True,
        )
        self.reply()

    def reply(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(self.log.read_text().strip().split("\n")[-1])
        return line

    def train(self, steps: int) -> float:
        """Return the seconds of `steps` steps."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return float(self.reply())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True)
class Comparison:
    """Medians of the milliseconds a step, and quartiles of the ratios of neighboring turns, first to second."""

    first_ms: float
    second_ms: float
    ratio: float
    quartiles: tuple[float, float]


def take_turns(
    installations: Sequence[Path], folder: Path, turns: Turns, rounds: int, scratch: str
) -> list[list[float]]:
    """Start a process for each installation; return the milliseconds a step of each round."""
    builds: list[Build] = []
    try:
        for installation in installations:
            builds.append(Build(installation, folder, turns, scratch))
        steps = 1
        for build in builds:
            spent = 0.0
            while spent < WARM_UP_S:
                took = build.train(steps)
                spent += took
                if took < turns.seconds:
                    steps *= 2
        steps = max(1, round(steps * turns.seconds / builds[0].train(steps)))
        times: list[list[float]] = []
        for number in range(rounds):
            pair = [0.0, 0.0]
            for i in (0, 1) if number % 2 == 0 else (1, 0):
                builds[i].train(1)  # brings its data back into the caches
                pair[i] = builds[i].train(steps) / steps * 1e3
            times.append(pair)
    finally:
        for build in builds:
            build.close()
    return times


def compare(first: Path, second: Path, folder: Path, turns: Turns, scratch: str) -> Comparison:
    """Train with two installations in turns.

    The processes are restarted several times, because the addresses of its memory can make a process faster
    than another one of the same build.

    Raises
    ------
    RuntimeError
        One of them cannot train; the message is the last line of what it printed.
    """
    starts = min(turns.starts, turns.rounds)
    times: list[list[float]] = []
    for i in range(starts):
        rounds = turns.rounds * (i + 1) // starts - turns.rounds * i // starts
        order = (first, second) if i % 2 == 0 else (second, first)
        some = take_turns(order, folder, turns, rounds, scratch)
        times += some if i % 2 == 0 else [pair[::-1] for pair in some]
    ratios = [one / other for one, other in times]
    low, middle, high = (
        statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    )
    medians = [statistics.median(pair[i] for pair in times) for i in (0, 1)]
    return Comparison(medians[0], medians[1], middle, (low, high))


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the option for the configuration of sessions."""
    parser.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a session config entry, such as ortrain.mixed_precision=bf16",
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.builds",
        description="Train with two builds of ortrain in turns and compare the time of a step.",
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="artifacts with a checkpoint")
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="PATH",
        help="Python interpreter, or folder, with the other installation of ortrain",
    )
    parser.add_argument("--rounds", type=int, default=15, help="turns of each build (default: 15)")
    parser.add_argument("--seconds", type=float, default=0.3, help="seconds of a turn (default: 0.3)")
    parser.add_argument("--batch", type=int, default=8, help="size of free dimensions (default: 8)")
    parser.add_argument("--threads", type=int, default=2, help="threads of each build (default: 2)")
    add_config(parser)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    turns = Turns(
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        batch=arguments.batch,
        threads=arguments.threads,
        config=arguments.config,
    )
    if arguments.worker:
        work(arguments.folders[0], turns)
        return 0
    if not arguments.baseline:
        parser.error("--baseline is missing")
    results: dict[str, Any] = {}
    print(f"{'artifacts':32} {'ms':>9} {'baseline':>9} {'ratio':>6}  quartiles")
    with tempfile.TemporaryDirectory(prefix="ortrain-bench-") as scratch:
        for folder in arguments.folders:
            try:
                found = compare(Path(sys.executable), arguments.baseline, folder.resolve(), turns, scratch)
            except RuntimeError as why:
                print(f"{folder.name:32} failed: {why}")
                continue
            results[str(folder)] = asdict(found)
            low, high = found.quartiles
            print(
                f"{folder.name:32} {found.first_ms:9.3f} {found.second_ms:9.3f} {found.ratio:6.3f}  "
                f"{low:.3f} to {high:.3f}",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    return 0 if len(results) == len(arguments.folders) else 1


if __name__ == "__main__":
    sys.exit(main())
