"""Train for long with changing shapes, sessions and errors, and plot the memory of the process.

Every round trains with changing batch sizes, saves, exports, loads and makes calls that fail. What a process holds must
not grow with the number of rounds.

    python -m tests.soak --steps 1000000 --plot memory.png
"""

from __future__ import annotations

import argparse
import pathlib
import tempfile
import time

import numpy as np
from ortrain import OrtrainError, SessionOptions
from ortrain.api import CheckpointState, LinearLRScheduler, Module, Optimizer

FIXTURES = pathlib.Path(__file__).parent / "data" / "fixtures"
CASES = ("mlp_adamw", "lenet_adamw", "regressor_mse", "encoder")
STEPS_OF_A_SESSION = 500


def resident() -> int:
    """Return the bytes of memory that the process has."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def fails(work: object, *arguments: object) -> None:
    """Make a call that has to fail."""
    try:
        work(*arguments)  # type: ignore[operator]
    except OrtrainError:
        return
    raise AssertionError("expected an error")


def train(case: str, steps: int, most_threads: int, folder: pathlib.Path, rng: np.random.Generator) -> None:
    """Train `steps` steps in one session, with errors in between."""
    files = FIXTURES / case
    with np.load(files / "batches.npz") as batches:
        x, y = batches["x0"], batches["y0"]
    options = SessionOptions()
    options.intra_op_num_threads = int(rng.integers(1, most_threads + 1))
    state = CheckpointState.load_checkpoint(files / "checkpoint")
    module = Module(files / "training_model.onnx", state, files / "eval_model.onnx", session_options=options)
    optimizer = Optimizer(files / "optimizer_model.onnx", module)
    scheduler = LinearLRScheduler(optimizer, 10, steps, 1e-4)
    module.train()
    for step in range(steps):
        batch = int(rng.integers(1, len(x) + 1))
        module(x[:batch], y[:batch])
        optimizer.step()
        scheduler.step()
        module.lazy_reset_grad()
        if step % 100 == 0:
            fails(module, x.astype(np.float64), y)
            fails(module, x[..., None], y)
            if x.dtype == np.float32:
                module(np.full_like(x, np.nan), y)
                fails(optimizer.step)
                module.lazy_reset_grad()
            fails(CheckpointState.load_checkpoint, files / "training_model.onnx")
            fails(CheckpointState.save_checkpoint, state, folder)
    CheckpointState.save_checkpoint(state, folder / "checkpoint", include_optimizer_state=True)
    CheckpointState.load_checkpoint(folder / "checkpoint")
    module.eval()
    module(x, y)
    module.export_model_for_inferencing(str(folder / "model.onnx"), module.output_names()[:1])


def plot(records: list[tuple[int, int]], path: pathlib.Path) -> None:
    """Draw memory over steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps, memory = np.array(records).T
    figure, axes = pyplot.subplots(figsize=(8, 3), layout="constrained")
    axes.plot(steps, memory / 2**20, linewidth=1)
    axes.set(xlabel="train steps", ylabel="resident memory (MiB)", ylim=(0, 1.2 * memory.max() / 2**20))
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=100)


def main() -> None:
    """Train until all steps, or all seconds, are spent; fail if memory grows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end earlier, after this time")
    parser.add_argument(
        "--cases", nargs="+", default=CASES, help="which of the recorded runs to train, in turn"
    )
    parser.add_argument("--threads", type=int, default=2, help="the most threads of a session")
    parser.add_argument("--plot", type=pathlib.Path, help="file for the plot")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    start, done, records = time.monotonic(), 0, []
    with tempfile.TemporaryDirectory() as folder:
        while done < arguments.steps and time.monotonic() - start < arguments.seconds:
            steps = min(STEPS_OF_A_SESSION, arguments.steps - done)
            train(
                arguments.cases[len(records) % len(arguments.cases)],
                steps,
                arguments.threads,
                pathlib.Path(folder),
                rng,
            )
            done += steps
            records.append((done, resident()))
    memory = np.array([bytes_ for _, bytes_ in records]) / 2**20
    half = len(memory) // 2
    early, late = memory[half // 2 : half], memory[half:]
    print(
        f"{done} steps in {len(records)} sessions, {time.monotonic() - start:.0f} s: {memory[0]:.1f} MiB after the first,"
        f" {early.max(initial=0):.1f} at most in the second quarter, {late.max(initial=0):.1f} at most in the second half"
    )
    if arguments.plot:
        plot(records, arguments.plot)
    if len(early) and late.max() > early.max() + 8:
        raise SystemExit("memory grows")


if __name__ == "__main__":
    main()
