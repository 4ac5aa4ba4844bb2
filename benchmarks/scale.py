"""The growth of a step's time with the work: `python -m benchmarks.scale --help`.

The benchmark trains networks of three layers with batch sizes from 1 to 256 and widths from 64 to 2048. The time should grow
steadily with the work, without a jump where ortrain changes the kernel, the layout or the number of threads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.runner import ROOT

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WIDTHS = (64, 128, 256, 512, 1024, 2048)
CLASSES = 10
COMPILE_BATCHES = (3, 5, 7, 9)
"""Batch sizes of the first steps by which the time of preparing a new shape is measured."""


@dataclass(frozen=True)
class Point:
    """One measurement.

    Attributes
    ----------
    width, batch : size of the hidden layers and examples in a step.
    step_ms : median of a train step with its optimizer step.
    gflops : billions of multiplications and additions per second, counting only matrix products.
    new_shape_ms : additional time of the first step with a new batch size, median.
    """

    width: int
    batch: int
    step_ms: float
    gflops: float
    new_shape_ms: float


def network(width: int, hidden: int = 2) -> onnx.ModelProto:
    """Build a network of hidden layers of a width, with ReLU, and a layer of ten classes."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    sizes = (*[width] * (hidden + 1), CLASSES)
    value = "input"
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        last = i == len(sizes) - 2
        matrix = rng.standard_normal((outputs, inputs)).astype(np.float32) / np.float32(np.sqrt(inputs))
        weights += [
            numpy_helper.from_array(matrix, f"w{i}"),
            numpy_helper.from_array(np.zeros(outputs, np.float32), f"b{i}"),
        ]
        product = "logits" if last else f"product{i}"
        nodes.append(helper.make_node("Gemm", [value, f"w{i}", f"b{i}"], [product], transB=1))
        if not last:
            nodes.append(helper.make_node("Relu", [product], [f"hidden{i}"]))
            value = f"hidden{i}"
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", width])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def measure_width(width: int, batches: tuple[int, ...], threads: int, folder: Path) -> list[Point]:
    """Return a point for each batch size."""
    from ortrain import SessionOptions, artifacts
    from ortrain.api import CheckpointState, Module, Optimizer

    model = network(width)
    names = [tensor.name for tensor in model.graph.initializer]
    artifacts.generate_artifacts(
        model,
        requires_grad=names,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )
    options = SessionOptions()
    options.intra_op_num_threads = threads
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, session_options=options)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    rng = np.random.default_rng(1)

    def step_ms(batch: int) -> float:
        images = rng.standard_normal((batch, width), dtype=np.float32)
        labels = rng.integers(0, CLASSES, batch)
        start = perf_counter()
        module(images, labels)
        optimizer.step()
        module.lazy_reset_grad()
        return (perf_counter() - start) * 1e3

    step_ms(1)
    extra = [step_ms(batch) - min(step_ms(batch) for _ in range(5)) for batch in COMPILE_BATCHES]
    points = []
    for batch in batches:
        for _ in range(3):
            step_ms(batch)
        times: list[float] = []
        while len(times) < 7 or (sum(times) < 500 and len(times) < 400):
            times.append(step_ms(batch))
        median = statistics.median(times)
        flops = 6.0 * batch * (2 * width * width + width * CLASSES)
        points.append(Point(width, batch, median, flops / median / 1e6, statistics.median(extra)))
    return points


def plot(points: list[Point], path: Path) -> bool:
    """Draw the time per step over batch and over width; return whether matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(10, 4), layout="constrained")
    by_batch, by_width = figure.subplots(1, 2)
    for width in sorted({point.width for point in points}):
        chosen = [point for point in points if point.width == width]
        by_batch.loglog([p.batch for p in chosen], [p.step_ms for p in chosen], "o-", label=f"width {width}")
    for batch in sorted({point.batch for point in points})[::2]:
        chosen = [point for point in points if point.batch == batch]
        by_width.loglog([p.width for p in chosen], [p.step_ms for p in chosen], "o-", label=f"batch {batch}")
    by_batch.set_xlabel("batch")
    by_width.set_xlabel("width")
    for axes in (by_batch, by_width):
        axes.set_ylabel("step, median ms")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=130)
    return True


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="threads of a step (default: 2)")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS, metavar="W")
    parser.add_argument("--batches", type=int, nargs="+", default=BATCHES, metavar="B")
    parser.add_argument(
        "--json",
        type=Path,
        default=ROOT / "build" / "bench" / "scale.json",
        metavar="FILE",
        help="file of the results; the plot is written next to it as PNG (default: build/bench/scale.json)",
    )
    options = parser.parse_args()
    points: list[Point] = []
    print(f"{'width':>6} {'batch':>6} {'step ms':>9} {'GFLOP/s':>8} {'new shape ms':>13}")
    for width in options.widths:
        with tempfile.TemporaryDirectory() as folder:
            found = measure_width(width, tuple(options.batches), options.threads, Path(folder))
        points += found
        for p in found:
            print(f"{p.width:>6} {p.batch:>6} {p.step_ms:>9.3f} {p.gflops:>8.1f} {p.new_shape_ms:>13.2f}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps([asdict(point) for point in points], indent=1) + "\n")
    picture = options.json.with_suffix(".png")
    print(f"results: {options.json}")
    print(f"plot: {picture}" if plot(points, picture) else "no plot: matplotlib is not installed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
