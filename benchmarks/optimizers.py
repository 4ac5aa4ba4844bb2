"""The time of a step of each optimizer, and the bytes that the step moves: `python -m benchmarks.optimizers --help`.

All optimizers take turns on one matrix. A step reads the gradients once, and reads and writes the weights and the states once.
Optimizers that need sums over the whole matrix read some of these twice. After each step, NumPy reads and writes that number of
bytes, with the same number of threads; the last column is the time of the step divided by the time of NumPy.

The measured step does not search the gradients for NaN. After a train step, an optimizer step does not search either, because the
train step has computed bounds of the gradients.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from ortrain import SessionOptions, artifacts
from ortrain.api import CheckpointState, Module, Optimizer
from ortrain.onnxblock import optim

SETTINGS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9},
    "rmsprop": {"momentum": 0.9, "centered": True},
}
READ_AGAIN = {"lamb": 3, "adafactor": 2}
"""Matrices that a step reads again: the weights and both moments; the weights and the gradients."""


def write_artifacts(folder: Path, name: str, rows: int, columns: int) -> None:
    """Write artifacts of a model whose only parameter is a matrix."""
    kind = onnx.TensorProto.FLOAT
    weight = np.random.default_rng(0).normal(size=(rows, columns)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weight"], ["y"])],
        "matrix",
        [helper.make_tensor_value_info("x", kind, ["n", rows])],
        [helper.make_tensor_value_info("y", kind, ["n", columns])],
        [numpy_helper.from_array(weight, "weight")],
    )
    artifacts.generate_artifacts(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        requires_grad=["weight"],
        loss=artifacts.LossType.MSELoss,
        optimizer=optim.BLOCKS[name](**SETTINGS.get(name, {})),
        artifact_directory=folder,
    )


class Mover:
    """Arrays of NumPy that take the place of an optimizer's: what their bytes cost without its arithmetic.

    Parameters
    ----------
    weights : int
        Floats that are read and written; as many gradients are read.
    states : int
        Bytes that are read and written.
    again : int
        How many arrays of floats are read once more.
    threads : int
        How many threads divide the work.
    """

    def __init__(self, weights: int, states: int, again: int, threads: int) -> None:
        self._again = again
        self._parts = [
            (np.zeros(weights // threads, np.float32), np.zeros(weights // threads, np.float32),
             np.zeros(states // threads, np.uint8))
            for _ in range(threads)
        ]  # fmt: skip
        self._pool = ThreadPoolExecutor(threads)

    def move(self) -> float:
        """Read and write all bytes once and return the time, in seconds."""
        start = perf_counter()
        list(self._pool.map(self._move, self._parts))
        return perf_counter() - start

    def _move(self, part: tuple[Any, Any, Any]) -> None:
        weights, gradients, states = part
        for k in range(self._again):
            (weights, gradients)[k % 2].max()
        np.subtract(weights, gradients, out=weights)
        np.invert(states, out=states)


class Contestant:
    """An optimizer whose step is timed."""

    def __init__(self, folder: Path, name: str, rows: int, columns: int, threads: int) -> None:
        self.name = name
        folder.mkdir()
        write_artifacts(folder, name, rows, columns)
        self._state = CheckpointState.load_checkpoint(folder / "checkpoint")
        options = SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("ortrain.nonfinite_gradients", "apply")
        files = (folder / "training_model.onnx", self._state, folder / "eval_model.onnx")
        self._module = Module(*files, session_options=options)
        self._optimizer = Optimizer(folder / "optimizer_model.onnx", self._module)
        gradient = np.random.default_rng(1).normal(size=(rows, columns)).astype(np.float32)
        self._module.train()
        self._state.parameters["weight"].grad = gradient
        self.step()  # makes the states
        self.times: list[float] = []
        CheckpointState.save_checkpoint(self._state, folder / "after", include_optimizer_state=True)
        CheckpointState.save_checkpoint(self._state, folder / "weights", include_optimizer_state=False)
        states = (folder / "after").stat().st_size - (folder / "weights").stat().st_size
        again = READ_AGAIN.get(name, 0)
        self.bytes = (3 + again) * gradient.nbytes + 2 * states
        self._mover = Mover(gradient.size, states, again, threads)
        self.moves: list[float] = []

    def turn(self) -> None:
        """Take a step and move the bytes once, which also clears the cache for the next one."""
        self.times.append(self.step())
        self.moves.append(self._mover.move())

    def step(self) -> float:
        """Take a step and return its time, in seconds."""
        start = perf_counter()
        self._optimizer.step()
        return perf_counter() - start


def table(contestants: Sequence[Contestant]) -> str:
    """Return the results as a table of Markdown."""
    least = {c.name: min(c.times) for c in contestants}
    lines = [
        "| optimizer | step, ms | median, ms | bytes, MB | the bytes alone, ms | ratio |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for c in contestants:
        time, move = least[c.name], min(c.moves)
        lines.append(
            f"| {c.name} | {1e3 * time:.2f} | {1e3 * statistics.median(c.times):.2f} | {c.bytes / 1e6:.0f} | "
            f"{1e3 * move:.2f} | {time / move:.2f} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="names of optimizers (default: all)")
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--columns", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=30, help="turns of each optimizer")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    names = list(dict.fromkeys(["adamw", *(options.names or sorted(optim.BLOCKS))]))
    with tempfile.TemporaryDirectory() as folder:
        contestants = [
            Contestant(Path(folder) / name, name, options.rows, options.columns, options.threads)
            for name in names
        ]
        for _ in range(options.rounds):
            for contestant in contestants:
                contestant.turn()
    print(table(contestants))
    return 0


if __name__ == "__main__":
    sys.exit(main())
