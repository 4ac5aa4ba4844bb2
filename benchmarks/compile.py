"""Measure the time until the second step of a graph of thousands of small nodes: `python -m benchmarks.compile --help`.

`benchmarks/sliding_chunks.py` creates the graph: shape arithmetic, tensors filled in place, and masks whose number of elements
depends on their values. New batches have masks of other sizes, so ortrain compiles parts of the graph again.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import onnx
from ortrain import artifacts
from ortrain.api import CheckpointState, Module, Optimizer

from benchmarks.sliding_chunks import batch_of, sliding_chunks


def measure(model: onnx.ModelProto, folder: Path, batches: int) -> dict[str, float]:
    """Return the seconds of each part."""
    marks: dict[str, float] = {}
    last = perf_counter()

    def mark(what: str) -> None:
        nonlocal last
        marks[what], last = perf_counter() - last, perf_counter()

    parameters = [w.name for w in model.graph.initializer]
    artifacts.generate_artifacts(
        model,
        requires_grad=parameters,
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )
    mark("artifacts")
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    mark("session")
    data = [list(batch_of(model, 2, seed).values()) for seed in range(batches)]
    last = perf_counter()

    def step(inputs: Sequence[object], what: str) -> None:
        module.train()
        module(*inputs)
        mark(what)
        optimizer.step()
        module.lazy_reset_grad()

    step(data[0], "first step")
    step(data[0], "second step")
    module.train()
    module(*data[0])
    nonzero = perf_counter()
    module(*data[0])  # adds to the gradients: the other variant of the training graph
    marks["accumulating"] = perf_counter() - nonzero
    module.lazy_reset_grad()
    module.eval()
    last = perf_counter()
    module(*data[0])
    mark("eval step")
    for number, inputs in enumerate(data[1:], 2):
        step(inputs, f"batch {number}")
    return marks


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.compile", description=__doc__)
    parser.add_argument(
        "--layers",
        type=int,
        nargs="+",
        default=[1, 2, 4, 8],
        metavar="N",
        help="numbers of layers (default: 1 2 4 8)",
    )
    parser.add_argument(
        "--batches", type=int, default=4, metavar="N", help="batches, each with a new mask (default: 4)"
    )
    options = parser.parse_args()
    head = True
    for layers in options.layers:
        model = sliding_chunks(layers)
        with tempfile.TemporaryDirectory() as folder:
            parts = measure(model, Path(folder), options.batches)
        if head:
            print(
                f"{'layers':>6}{'nodes':>7}{'NonZero':>8}"
                + "".join(f"{part:>13}" for part in parts)
                + "  (ms)"
            )
        head = False
        masks = sum(node.op_type == "NonZero" for node in model.graph.node)
        times = "".join(f"{1e3 * seconds:>13.0f}" for seconds in parts.values())
        print(f"{layers:>6}{len(model.graph.node):>7}{masks:>8}{times}", flush=True)


if __name__ == "__main__":
    main()
