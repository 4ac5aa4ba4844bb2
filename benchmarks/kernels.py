"""How close kernels come to the limits of the processor: `python -m benchmarks.kernels --help`.

Each case is a model whose time is mostly that of one node and of its gradient. The profiler of the train step measures the
kernels of this node. Before and after the steps of each turn, `machine.cpp` measures with the same number of threads how many
multiply-adds the processor executes, and how many bytes it copies in memory. The share of that limit is the median over all
turns, so a processor that other programs slow down counts as a slower processor.

The operations of a convolution are those of its definition. Winograd's algorithm needs fewer, so its share may exceed 100 %. A
depthwise convolution is compared with the copied bytes: it must at least read its input and write its output, and its gradient
must read both and write the gradient of the input.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from ortrain import SessionOptions, artifacts
from ortrain.api import CheckpointState, Module

from benchmarks.builds import add_config
from benchmarks.runner import ROOT, count

NODE = "kernel"
"""The name of the measured node."""
FEW = 4
"""Images have fewer channels than this."""


@dataclass(frozen=True)
class Case:
    """A node with the sizes of its input, and what it has to do.

    Attributes
    ----------
    kind : of kernel.
    goal : the share of the limit that the kernels should reach; None for kinds without such a goal.
    input, weight : their dimensions.
    output : number of rows or points of the output for each filter or column.
    attributes : of the operator `op`.
    """

    kind: str
    goal: float | None
    op: str
    input: tuple[int, ...]
    weight: tuple[int, ...]
    output: int
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the sizes as text."""
        if self.op == "Gemm":
            return f"{self.input[0]} x {self.weight[0]} x {self.weight[1]}"
        batch, channels, *size = self.input
        window = " x ".join(map(str, self.weight[2:]))
        stride = self.attributes.get("strides", [1])[0]
        details = f", stride {stride}" if stride > 1 else ""
        if dilation := self.attributes.get("dilations"):
            details += f", dilation {dilation[0]}"
        filters = self.weight[1] if self.op == "ConvTranspose" else self.weight[0]
        return f"{window}{details}, {batch} of {' x '.join(map(str, size))}, {channels} to {filters} channels"

    @property
    def model_input(self) -> tuple[int, ...]:
        """Return the dimensions of the input of the case's model."""
        batch, channels, *size = self.input
        return (batch, min(channels, FEW) if self.op != "Gemm" else channels, *size)

    @property
    def operations(self) -> float:
        """Return the operations of a forward pass; each of the two gradients has as many."""
        return 2.0 * self.output * prod(self.weight)

    def bytes_moved(self, backward: bool) -> float:
        """Return the bytes that a depthwise convolution or its gradient at least moves."""
        read, written = 4.0 * prod(self.input), 4.0 * self.output * self.weight[0]
        return 2 * read + written if backward else read + written


def product(m: int, k: int, n: int) -> Case:
    """Return the product of a matrix [m, k] and weights [k, n]."""
    return Case("product", 0.85, "Gemm", (m, k), (k, n), m)


def convolution(
    kind: str,
    goal: float | None,
    batch: int,
    channels: int,
    filters: int,
    size: Sequence[int],
    window: int,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
) -> Case:
    """Return a convolution whose output has the size of its input divided by the stride, as `Case` describes it."""
    axes, pad = len(size), dilation * (window - 1) // 2
    attributes: dict[str, Any] = {"pads": [pad] * 2 * axes, "strides": [stride] * axes, "group": groups}
    if dilation > 1:
        attributes["dilations"] = [dilation] * axes
    output = batch * prod((n + 2 * pad - dilation * (window - 1) - 1) // stride + 1 for n in size)
    weight = (filters, channels // groups, *[window] * axes)
    return Case(kind, goal, "Conv", (batch, channels, *size), weight, output, attributes)


def transposed(batch: int, channels: int, filters: int, size: int) -> Case:
    """Return a transposed convolution of windows of 2 x 2 that doubles the size."""
    shape, weight = (batch, channels, size, size), (channels, filters, 2, 2)
    return Case("transposed", None, "ConvTranspose", shape, weight, batch * size * size, {"strides": [2, 2]})


CASES = (
    product(1024, 256, 256),
    product(1024, 256, 1024),
    product(1024, 1024, 256),
    product(2048, 1024, 1024),
    product(64, 784, 500),
    *(
        convolution("winograd", 1.2, 16, c, c, (s, s), 3)
        for c, s in ((64, 32), (128, 16), (256, 8), (512, 4))
    ),
    *(
        convolution("direct", 0.75, 16, c, 2 * c, (s, s), 3, stride=2)
        for c, s in ((64, 32), (128, 16), (256, 8))
    ),
    convolution("direct", 0.75, 16, 64, 64, (32, 32), 3, dilation=2),
    convolution("pointwise", 0.85, 16, 64, 256, (32, 32), 1),
    convolution("pointwise", 0.85, 16, 256, 64, (32, 32), 1),
    convolution("pointwise", 0.85, 4, 24, 144, (56, 56), 1),
    convolution("pointwise", 0.85, 4, 576, 96, (14, 14), 1),
    convolution("pointwise", 0.85, 16, 256, 512, (8, 8), 1, stride=2),
    convolution("depthwise", 0.6, 8, 144, 144, (112, 112), 3, groups=144),
    convolution("depthwise", 0.6, 8, 144, 144, (112, 112), 3, stride=2, groups=144),
    convolution("depthwise", 0.6, 8, 144, 144, (112, 112), 5, groups=144),
    convolution("5x5", None, 16, 32, 64, (28, 28), 5),
    convolution("stem", None, 4, 3, 64, (224, 224), 7, stride=2),
    convolution("grouped", None, 16, 128, 128, (28, 28), 3, groups=4),
    convolution("1d", None, 32, 64, 64, (1024,), 5),
    convolution("3d", None, 4, 16, 32, (16, 16, 16), 3),
    transposed(8, 64, 32, 32),
)


def model_of(case: Case) -> onnx.ModelProto:
    """Build a model of the case's node.

    A pointwise convolution comes before a convolution, so that the values are stored as in a network and their gradient is
    needed; images of few channels are the input of the model, as in a network. The input of a product is scaled.
    """
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(case.weight).astype(np.float32) / np.float32(np.sqrt(case.weight[-1]))
    trained = {"weight": weight}
    _, channels, *size = case.input
    if case.op == "Gemm":
        trained["before"] = np.ones(channels, np.float32)
        nodes = [helper.make_node("Mul", ["input", "before"], ["x"])]
    elif channels < FEW:
        nodes = [helper.make_node("Identity", ["input"], ["x"])]
    else:
        trained["before"] = np.ones((channels, FEW, *[1] * len(size)), np.float32)
        nodes = [helper.make_node("Conv", ["input", "before"], ["x"])]
    nodes.append(helper.make_node(case.op, ["x", "weight"], ["y"], name=NODE, **case.attributes))
    if case.op != "Gemm":
        nodes.append(helper.make_node("GlobalAveragePool", ["y"], ["means"]))
    nodes.append(helper.make_node("Flatten", [nodes[-1].output[0]], ["output"]))
    graph = helper.make_graph(
        nodes,
        "kernel",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["n", *case.model_input[1:]])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in trained.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


class Runner:
    """Trains a case's model and measures the kernels of its node."""

    def __init__(self, case: Case, folder: Path, threads: int, config: Sequence[str]) -> None:
        self.case = case
        model = model_of(case)
        artifacts.generate_artifacts(
            model,
            requires_grad=[tensor.name for tensor in model.graph.initializer],
            loss=artifacts.LossType.CrossEntropyLoss,
            artifact_directory=folder,
        )
        options = SessionOptions()
        options.intra_op_num_threads = threads
        for entry in config:
            options.add_session_config_entry(*entry.split("=", 1))
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        self._module = Module(folder / "training_model.onnx", state, session_options=options)
        values = np.random.default_rng(1).standard_normal(case.model_input).astype(np.float32)
        self._batch = (values, np.zeros(len(values), np.int64))
        self._train(2)

    def _train(self, steps: int) -> None:
        for _ in range(steps):
            self._module(*self._batch)
            self._module.lazy_reset_grad()

    def turn(self, steps: int) -> dict[str, float]:
        """Train some steps and return the median time of the node and of each node of its gradient, in seconds.

        Reorderings are not counted: the values between the convolutions of a network stay in one order.
        """
        self._module.start_profiling()
        self._train(steps)
        trace = json.loads(self._module.end_profiling())
        times: dict[str, list[float]] = {}
        for event in trace["traceEvents"]:
            node = event["args"].get("node", "")
            if node.split("_Grad")[0] == NODE and event["name"] != "(layout)":
                times.setdefault(node, []).append(event["dur"] / 1e6)
        for node, found in times.items():
            assert len(found) == steps, f"{node} has {len(found)} kernels in {steps} steps"
        return {node: statistics.median(found) for node, found in times.items()}


class Machine:
    """The process that measures the limits."""

    def __init__(self, program: Path, threads: int, megabytes: int) -> None:
        self._process = subprocess.Popen(
            [program, str(threads), str(megabytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def limits(self) -> tuple[float, float]:
        """Return operations and bytes per second."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        operations, moved = map(float, self._process.stdout.readline().split())
        return operations, moved

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def machine(folder: Path, threads: int, flags: str) -> Iterator[Machine]:
    """Compile and start the process that measures the limits."""
    program = folder / "machine"
    command = [
        *shlex.split(os.environ.get("CXX", "c++")),
        "-std=c++20",
        "-O3",
        *shlex.split(flags),
        "-pthread",
    ]
    try:
        subprocess.run([*command, ROOT / "benchmarks" / "machine.cpp", "-o", program], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"benchmarks/machine.cpp was not compiled (CXX names another compiler): {error}")
    started = Machine(program, threads, megabytes=128)
    try:
        yield started
    finally:
        started.close()


@dataclass
class Measurement:
    """The turns of one kernel of a case."""

    case: Case
    what: str
    amount: float
    unit: str
    times: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)

    def add(self, time: float, limit: float) -> None:
        self.times.append(time)
        self.shares.append(self.amount / time / limit)

    def row(self) -> dict[str, Any]:
        """Return the medians."""
        time = statistics.median(self.times)
        return {
            "kind": self.case.kind,
            "case": self.case.name,
            "what": self.what,
            "ms": 1e3 * time,
            "rate": self.amount / time / 1e9,
            "unit": self.unit,
            "share": statistics.median(self.shares),
            "goal": self.case.goal,
        }


def measurement(case: Case, node: str) -> Measurement:
    """Return what a kernel of the case's node does: the forward pass, one gradient or both."""
    backward = node != NODE
    depthwise = case.kind == "depthwise"
    if not backward:
        what, amount = "forward", case.operations
    elif case.op == "Gemm":
        by_weight = node.endswith("Gemm_1")
        what, amount = "gradient of the weights" if by_weight else "gradient of the input", case.operations
    elif case.input[1] < FEW:
        what, amount = "gradient of the weights", case.operations
    else:
        what, amount = "gradients", 2 * case.operations
    if depthwise:
        return Measurement(case, what, case.bytes_moved(backward), "GB/s")
    return Measurement(case, what, amount, "GFLOP/s")


def measure(case: Case, options: argparse.Namespace, limits: Machine) -> list[Measurement]:
    """Measure the kernels of a case in turns with the limits."""
    found: dict[str, Measurement] = {}
    with tempfile.TemporaryDirectory() as folder:
        runner = Runner(case, Path(folder), options.threads, options.config)
        before = limits.limits()
        for _ in range(options.rounds):
            times = runner.turn(options.steps)
            after = limits.limits()
            for node, time in times.items():
                kernel = found.setdefault(node, measurement(case, node))
                at = 1 if kernel.unit == "GB/s" else 0
                kernel.add(time, (before[at] + after[at]) / 2)
            before = after
    return list(found.values())


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Return the results as lines of Markdown."""
    yield "| kind | sizes | pass | ms | rate | share of the limit | goal |"
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: |"
    for row in rows:
        wanted = f"{row['goal']:.0%}" if row["goal"] is not None else ""
        yield (
            f"| {row['kind']} | {row['case']} | {row['what']} | {row['ms']:.2f} | "
            f"{row['rate']:.0f} {row['unit']} | {row['share']:.0%} | {wanted} |"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    kinds = list(dict.fromkeys(case.kind for case in CASES))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"{', '.join(kinds)} (default: all)")
    parser.add_argument(
        "--threads", type=count, metavar="N", default=1, help="threads of each step (default: 1)"
    )
    parser.add_argument(
        "--rounds", type=count, metavar="N", default=9, help="turns of each case (default: 9)"
    )
    parser.add_argument(
        "--steps", type=count, metavar="N", default=5, help="train steps of a turn (default: 5)"
    )
    parser.add_argument(
        "--flags",
        default="-march=native",
        help="of the compiler, for the program that measures the limits (default: -march=native)",
    )
    add_config(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    options = parser.parse_args(arguments)
    for name in options.kinds:
        if name not in kinds:
            parser.error(f"unknown kind {name!r}; known are {', '.join(kinds)}")
    rows: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        machine(Path(folder), options.threads, options.flags) as limits,
    ):
        measured = [limits.limits() for _ in range(5)]
        operations, moved = (statistics.median(values) / 1e9 for values in zip(*measured, strict=True))
        print(
            f"{platform.machine()}, threads: {options.threads}, at most {operations:.0f} GFLOP/s, {moved:.0f} GB/s copied"
        )
        for case in CASES:
            if not options.kinds or case.kind in options.kinds:
                found = [kernel.row() for kernel in measure(case, options, limits)]
                for row in found:
                    print(f"  {row['kind']}, {row['case']}, {row['what']}: {row['share']:.0%}", flush=True)
                rows += found
    print("", *table(rows), sep="\n")
    if options.json is not None:
        options.json.write_text(json.dumps({"threads": options.threads, "kernels": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
