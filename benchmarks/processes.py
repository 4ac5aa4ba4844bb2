"""Measure the cost of training with several processes: `python -m benchmarks.processes --help`.

Two processes on this machine train networks of several sizes. The benchmark measures the bytes that each process sends in a
step, the time for which a step waits for the other process, and the time of a bare all-reduce of this number of bytes.
Gradients are sent during the backward pass or after it. A latency and a bandwidth are fitted to these times; with them, a model
extrapolates the time of a step to many nodes. The benchmark measures only two processes on one machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.runner import ROOT
from benchmarks.scale import network

WIDTHS = (64, 128, 256, 512, 1024)
BATCH = 32
STEPS = 100
NODES = tuple(2**k for k in range(1, 11))
NETWORKS = {"10 Gbit/s, 30 µs": (30e-6, 1.25e9), "1 Gbit/s, 100 µs": (100e-6, 1.25e8)}
"""Latency in seconds and bandwidth in bytes per second of networks that are assumed, not measured."""


WIRES = ("float32", "bfloat16")


def train(width: int, folder: Path) -> list[dict[str, Any]]:
    """Train a network in this process and its peers; return what a step takes with each type on the wire.

    Gradients are sent during the backward pass, or after it. The variants take turns, so that all see the same load of
    the machine. The times are the shortest of several steps.
    """
    from mpi4py import MPI
    from ortrain import SessionOptions, artifacts
    from ortrain.api import CheckpointState, Module, Optimizer
    from ortrain.distributed import Communicator, DataParallel

    if MPI.COMM_WORLD.rank == 0:
        artifacts.generate_artifacts(
            network(width),
            loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=artifacts.OptimType.AdamW,
            artifact_directory=folder,
        )
    MPI.COMM_WORLD.Barrier()
    options = SessionOptions()
    options.intra_op_num_threads = 1
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(
        folder / "training_model.onnx", state, folder / "eval_model.onnx", session_options=options
    )
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    rng = np.random.default_rng(MPI.COMM_WORLD.rank)
    x = rng.standard_normal((BATCH, width)).astype(np.float32)
    y = rng.integers(0, 10, BATCH)
    ranks = Communicator()
    variants = {
        (wire, during): DataParallel(module, optimizer, ranks, accumulated=1 if during else None, wire=wire)
        for wire in WIRES
        for during in (True, False)
    }
    times: dict[tuple[str, bool], list[float]] = {variant: [] for variant in variants}
    waits: dict[tuple[str, bool], list[float]] = {variant: [] for variant in variants}
    alone = []
    for _ in range(STEPS):
        for variant, parallel in variants.items():
            MPI.COMM_WORLD.Barrier()
            before, start = parallel.traffic.seconds, perf_counter()
            parallel(x, y)
            parallel.step()
            parallel.lazy_reset_grad()
            times[variant].append(perf_counter() - start)
            waits[variant].append(parallel.traffic.seconds - before)
        start = perf_counter()
        module(x, y)
        optimizer.step()
        module.lazy_reset_grad()
        alone.append(perf_counter() - start)
    return [
        {
            "width": width,
            "wire": wire,
            "parameters": module.get_parameters_size(),
            "bytes": variants[wire, True].traffic.bytes / variants[wire, True].traffic.steps,
            "step": min(times[wire, True]),
            "wait": min(waits[wire, True]),
            "step_after": min(times[wire, False]),
            "wait_after": min(waits[wire, False]),
            "alone": min(alone),
        }
        for wire in WIRES
    ]


def all_reduce(size: int) -> float:
    """Return the seconds of an all-reduce of so many bytes, the shortest of several."""
    from mpi4py import MPI

    values = np.ones(max(1, size // 4), np.float32)
    times = []
    for _ in range(STEPS):
        MPI.COMM_WORLD.Barrier()
        start = perf_counter()
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, values)
        times.append(perf_counter() - start)
    return min(times)


def work(folder: Path) -> None:
    """Measure everything, in each of the processes, and print it on the first."""
    from mpi4py import MPI

    rows = [row for width in WIDTHS for row in train(width, folder)]
    bare = [{"bytes": 4**k, "seconds": all_reduce(4**k)} for k in range(2, 13)]
    if MPI.COMM_WORLD.rank == 0:
        print(json.dumps({"steps": rows, "bare": bare}))


def fit(bare: list[dict[str, float]]) -> tuple[float, float]:
    """Return latency in seconds and bandwidth in bytes per second: two ranks exchange once, latency + bytes/bandwidth."""
    latency = min(row["seconds"] for row in bare)
    largest = bare[-1]
    return latency, largest["bytes"] / max(largest["seconds"] - latency, 1e-9)


def ring(nodes: int, size: float, latency: float, bandwidth: float) -> float:
    """Return the time of a ring all-reduce: 2(n-1) messages of size/n.

    P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009.
    """
    return 2 * (nodes - 1) * (latency + size / nodes / bandwidth)


def doubling(nodes: int, size: float, latency: float, bandwidth: float) -> float:
    """Return the time of recursive doubling: log2(n) messages of the whole size.

    R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in MPICH", 2005.
    """
    return math.log2(nodes) * (latency + size / bandwidth)


def plot(measured: dict[str, Any], path: Path) -> None:
    """Draw what was measured on two ranks, and the model beyond them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    latency, bandwidth = fit(measured["bare"])
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 4.2), layout="constrained")
    for wire, mark in zip(WIRES, ("o-", "s--"), strict=True):
        rows = [row for row in measured["steps"] if row["wire"] == wire]
        sizes = [row["parameters"] for row in rows]
        left.loglog(sizes, [1e3 * row["step"] for row in rows], mark, color="C0", label=f"step, {wire}")
        left.loglog(sizes, [1e3 * row["wait"] for row in rows], mark, color="C1", label=f"waiting, {wire}")
    rows = [row for row in measured["steps"] if row["wire"] == "float32"]
    left.loglog(
        [r["parameters"] for r in rows],
        [1e3 * r["alone"] for r in rows],
        ":",
        color="gray",
        label="without exchange",
    )
    left.set(title="Measured: 2 ranks on one machine", xlabel="parameters", ylabel="ms per step")
    left.legend(fontsize=8)
    largest = rows[-1]
    networks = {
        f"this machine, {latency * 1e6:.0f} µs, {bandwidth / 1e9:.1f} GB/s": (latency, bandwidth),
        **NETWORKS,
    }
    for color, (name, (alpha, beta)) in enumerate(networks.items()):
        for algorithm, line in ((ring, "-"), (doubling, "--")):
            times = [1e3 * (largest["alone"] + algorithm(n, largest["bytes"], alpha, beta)) for n in NODES]
            right.loglog(NODES, times, line, color=f"C{color}", label=f"{name}, {algorithm.__name__}")
    right.axhline(1e3 * largest["alone"], color="gray", linestyle=":")
    right.set(
        title=f"A model, not a measurement: {largest['parameters'] / 1e6:.1f} million parameters",
        xlabel="nodes",
        ylabel="ms per step",
    )
    right.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=110)


def main() -> int:
    """Measure and plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "processes.json")
    parser.add_argument("--plot", type=Path, help="file for a plot, such as docs/images/processes.png")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        launcher = Path(sys.executable).parent / "mpiexec"
        command = [str(launcher), "-n", "2", sys.executable, "-m", "benchmarks.processes", "--worker", folder]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, timeout=600, check=True
        )
    measured = json.loads(done.stdout)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(measured, indent=1))
    print("                                    sent during backward    sent after it")
    print("  parameters  type      bytes/step   step ms   waiting ms   step ms   waiting ms   alone ms")
    for row in measured["steps"]:
        print(
            f"{row['parameters']:12,}  {row['wire']:8}  {row['bytes']:10,.0f}  {1e3 * row['step']:8.2f}  "
            f"{1e3 * row['wait']:11.2f}  {1e3 * row['step_after']:8.2f}  {1e3 * row['wait_after']:11.2f}  "
            f"{1e3 * row['alone']:9.2f}"
        )
    latency, bandwidth = fit(measured["bare"])
    print(f"latency {latency * 1e6:.1f} µs, bandwidth {bandwidth / 1e9:.2f} GB/s")
    if options.plot:
        plot(measured, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
