"""Step models on stock onnxruntime compared with sessions of ortrain: `python -m benchmarks.step_models --help`.

A model is trained in a training session of ortrain and, as a step model, in onnxruntime; the two take turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import onnx
import onnxruntime
from ortrain import SessionOptions, step
from ortrain.api import CheckpointState, Module, Optimizer
from ortrain.artifacts import write_step

from benchmarks.builds import batches


def contestants(
    folder: Path, batch: int, threads: int, scratch: Path
) -> tuple[dict[str, Callable[[], float]], int]:
    """Return a function for a step of each contestant, which returns the loss, and the number of nodes of the step model."""
    path = scratch / f"{folder.parent.name}-{folder.name}.onnx"
    write_step(folder, path)
    data = batches(folder, batch)
    options = SessionOptions()
    options.intra_op_num_threads = threads
    state = CheckpointState.load_checkpoint(str(folder / "checkpoint"))
    module = Module(
        str(folder / "training_model.onnx"), state, str(folder / "eval_model.onnx"), session_options=options
    )
    optimizer = Optimizer(str(folder / "optimizer_model.onnx"), module)
    there = onnxruntime.SessionOptions()
    there.intra_op_num_threads = threads
    there.log_severity_level = 3
    session = step.Session(path, checkpoint=folder / "checkpoint", session_options=there)
    turns = [0, 0]

    def ours() -> float:
        inputs = data[turns[0] % len(data)]
        turns[0] += 1
        found = module(*inputs)
        optimizer.step()
        module.lazy_reset_grad()
        return float(found[0] if isinstance(found, tuple) else found)

    def theirs() -> float:
        inputs = data[turns[1] % len(data)]
        turns[1] += 1
        found = session(*inputs)
        return float(found[0] if isinstance(found, tuple) else found)

    module.train()
    return {"ortrain": ours, "step model": theirs}, len(onnx.load(path).graph.node)


def main() -> None:
    """Print a row for each folder of artifacts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="folders of artifacts")
    parser.add_argument("--batch", type=int, default=8, help="the size of free dimensions")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds for which each contestant trains")
    arguments = parser.parse_args()
    print(
        "| artifacts | nodes | ortrain | step model on onnxruntime | ratio | largest difference of losses |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as scratch:
        for folder in arguments.folders:
            steps, nodes = contestants(folder, arguments.batch, arguments.threads, Path(scratch))
            losses = {name: [run() for _ in range(5)] for name, run in steps.items()}
            apart = max(abs(a / b - 1) for a, b in zip(*losses.values(), strict=True))
            times: dict[str, list[float]] = {name: [] for name in steps}
            end = perf_counter() + 2 * arguments.seconds
            while perf_counter() < end or len(times["ortrain"]) < 5:
                for name, run in steps.items():
                    start = perf_counter()
                    run()
                    times[name].append(perf_counter() - start)
            here, there = (statistics.median(values) * 1e3 for values in times.values())
            print(
                f"| {folder} | {nodes} | {here:.2f} ms | {there:.2f} ms | {there / here:.2f} | {apart:.1e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
