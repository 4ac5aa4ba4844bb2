"""Train a small convolutional network on handwritten digits, from a plain ONNX model to an exported one.

The digits are the 1,797 images of 8x8 pixels that scikit-learn ships; a quarter of them is held out. The run
creates the training artifacts, trains, saves a checkpoint halfway, resumes from that checkpoint in a second
session, and exports the trained model. It exits with status 1 if the resumed run differs from the first in a
single bit, or if stock onnxruntime computes other logits with the exported model or misreads too many digits.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import data
import numpy as np
import onnxruntime
import plots
from model import build_model
from ortrain import artifacts
from ortrain.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from tqdm import tqdm

BATCH_SIZE = 32
LEARNING_RATE = 3e-3
LOWEST_ACCURACY = 0.97
LARGEST_DIFFERENCE = 1e-4


@dataclass
class History:
    """The measurements of a run: the loss of each step, and the results of each epoch."""

    step_losses: list[float] = field(default_factory=list)
    train_accuracies: list[float] = field(default_factory=list)
    test_losses: list[float] = field(default_factory=list)
    test_accuracies: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Check:
    """Something that must hold at the end."""

    what: str
    found: str
    expected: str
    passed: bool


class Training:
    """One training session on one checkpoint.

    Parameters
    ----------
    folder : Path
        Where the artifacts are.
    checkpoint : Path
        The checkpoint to start from: the one among the artifacts, or one that was saved later.
    epochs, steps_per_epoch : int
        Length of the whole training, including what happened before the checkpoint.
    seed : int
        Seed of the shuffling.
    """

    def __init__(self, folder: Path, checkpoint: Path, epochs: int, steps_per_epoch: int, seed: int) -> None:
        self.state = CheckpointState.load_checkpoint(checkpoint)
        self.module = Module(folder / "training_model.onnx", self.state, folder / "eval_model.onnx")
        self.optimizer = Optimizer(folder / "optimizer_model.onnx", self.module)
        # The schedule continues from the optimizer steps that the checkpoint has completed.
        steps = epochs * steps_per_epoch
        self.scheduler = LinearLRScheduler(self.optimizer, steps // 10, steps, LEARNING_RATE)

        self.epochs = epochs
        self.steps_per_epoch = steps_per_epoch
        self.seed = seed
        self.first_epoch = self.state.properties["epoch"] + 1 if "epoch" in self.state.properties else 1
        self.history = History()

    def run(
        self, title: str, train: data.Split, test: data.Split, save: dict[int, Path] | None = None
    ) -> None:
        """Train to the last epoch and evaluate after each.

        `save` maps the epochs after which a checkpoint is saved to its path.
        """
        steps = (self.epochs - self.first_epoch + 1) * self.steps_per_epoch
        with tqdm(total=steps, desc=title, unit="step", dynamic_ncols=True) as bar:
            for epoch in range(self.first_epoch, self.epochs + 1):
                self.train_epoch(epoch, train, bar)
                loss, logits = self.evaluate(test)
                accuracy = float((logits.argmax(axis=1) == test.labels).mean())
                self.history.test_losses.append(loss)
                self.history.test_accuracies.append(accuracy)
                bar.write(
                    f"{title}: epoch {epoch}/{self.epochs}, held-out loss {loss:.4f}, accuracy {accuracy:.1%}"
                )
                if save and epoch in save:
                    self.save(save[epoch], epoch)

    def train_epoch(self, epoch: int, train: data.Split, bar: tqdm) -> None:
        """Take one step for every batch; the bar shows loss, learning rate and accuracy."""
        # Every epoch has its own shuffle, so that a resumed run sees the same batches as the first one.
        rng = np.random.default_rng([self.seed, epoch])
        self.module.train()
        read = seen = 0
        for images, labels in train.batches(BATCH_SIZE, rng):
            loss, logits = self.module(images, labels)
            learning_rate = self.optimizer.get_learning_rate()
            self.optimizer.step()
            self.scheduler.step()
            self.module.lazy_reset_grad()

            read += int((logits.argmax(axis=1) == labels).sum())
            seen += len(labels)
            self.history.step_losses.append(float(loss))
            bar.set_postfix_str(
                f"loss {float(loss):.4f}, lr {learning_rate:.2e}, accuracy {read / seen:6.1%}", refresh=False
            )
            bar.update()
        self.history.train_accuracies.append(read / seen)

    def evaluate(self, split: data.Split) -> tuple[float, np.ndarray]:
        """Run the eval model; returns the mean loss and the logits, float32 of shape [n, 10]."""
        self.module.eval()
        loss, logits = self.module(split.images, split.labels)
        return float(loss), logits

    def save(self, path: Path, epoch: int) -> None:
        """Save everything needed to resume: parameters, optimizer state, and the number of completed epochs."""
        self.state.properties["epoch"] = epoch
        CheckpointState.save_checkpoint(self.state, path, include_optimizer_state=True)

    def parameter_bytes(self) -> dict[str, bytes]:
        """Return the bytes of every parameter, including the running statistics of the normalizations."""
        return {name: parameter.data.tobytes() for name, parameter in self.state.parameters}


def make_artifacts(folder: Path, seed: int) -> None:
    """Write training model, eval model, optimizer model and checkpoint of a network with random weights."""
    model, trainable, frozen = build_model(seed)
    artifacts.generate_artifacts(
        model,
        requires_grad=trainable,
        frozen_params=frozen,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
        additional_output_names=[
            "logits"
        ],  # every step returns them besides the loss, so accuracy needs no second pass
    )


def check_resumed(first: Training, resumed: Training) -> Check:
    """Compare every byte of every parameter of two runs."""
    ours, theirs = first.parameter_bytes(), resumed.parameter_bytes()
    different = [name for name in ours if ours[name] != theirs.get(name)]
    return Check(
        what="resumed run",
        found=f"differs in {', '.join(different)}" if different else f"{len(ours)} parameters bit-identical",
        expected="every parameter bit-identical to the uninterrupted run",
        passed=not different,
    )


def check_exported(path: Path, test: data.Split, logits: np.ndarray) -> list[Check]:
    """Run the exported model in stock onnxruntime and compare it with the logits of our eval model."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (theirs,) = session.run(["logits"], {"images": test.images})
    difference = float(np.abs(theirs - logits).max())
    accuracy = float((theirs.argmax(axis=1) == test.labels).mean())
    return [
        Check(
            what="exported model",
            found=f"logits differ by {difference:.1e} in onnxruntime {onnxruntime.__version__}",
            expected=f"less than {LARGEST_DIFFERENCE:.0e}",
            passed=difference < LARGEST_DIFFERENCE,
        ),
        Check(
            what="accuracy",
            found=f"{accuracy:.2%} of {len(test)} held-out digits",
            expected=f"at least {LOWEST_ACCURACY:.0%}",
            passed=accuracy >= LOWEST_ACCURACY,
        ),
    ]


def print_summary(rows: list[tuple[str, str]], checks: list[Check]) -> None:
    """Print the results and the checks as a table."""
    rows = rows + [(check.what, f"{'ok' if check.passed else 'FAILED'}: {check.found}") for check in checks]
    left = max(len(name) for name, _ in rows)
    right = max(len(text) for _, text in rows)
    print(f"\n┌{'─' * (left + 2)}┬{'─' * (right + 2)}┐")
    for name, text in rows:
        print(f"│ {name:<{left}} │ {text:<{right}} │")
    print(f"└{'─' * (left + 2)}┴{'─' * (right + 2)}┘")


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--epochs", type=int, default=12, help="passes over the training digits, 2 or more (default 12)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the weights and the shuffling (default 1)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/demo"), help="folder for all results (default build/demo)"
    )
    options = parser.parse_args(arguments)
    if options.epochs < 2:
        parser.error(f"--epochs: expected 2 or more, so that there is a midpoint, found {options.epochs}")
    if options.seed < 0:
        parser.error(f"--seed: expected 0 or more, found {options.seed}")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; returns the exit status."""
    options = parse_arguments(arguments)
    out, epochs, seed = options.out, options.epochs, options.seed
    folder = out / "artifacts"
    folder.mkdir(parents=True, exist_ok=True)
    halfway, final, exported = out / "halfway.ckpt", out / "final.ckpt", out / "digits.onnx"
    curves, misread = out / "curves.png", out / "misread.png"

    train, test = data.load()
    steps_per_epoch = len(train) // BATCH_SIZE
    print(f"{len(train)} digits for training, {len(test)} held out")
    make_artifacts(folder, seed)

    began = time.perf_counter()
    first = Training(folder, folder / "checkpoint", epochs, steps_per_epoch, seed)
    first.run("first run", train, test, save={epochs // 2: halfway, epochs: final})
    first_seconds = time.perf_counter() - began

    began = time.perf_counter()
    resumed = Training(folder, halfway, epochs, steps_per_epoch, seed)
    resumed.run("resumed", train, test)
    resumed_seconds = time.perf_counter() - began

    _, logits = first.evaluate(test)
    first.module.export_model_for_inferencing(exported, ["logits"])
    history = first.history
    plots.draw_curves(
        curves, history.step_losses, history.train_accuracies, history.test_losses, history.test_accuracies
    )
    plots.draw_misread(misread, test.images, test.labels, logits.argmax(axis=1))

    checks = [check_resumed(first, resumed), *check_exported(exported, test, logits)]
    print_summary(
        [
            ("parameters", f"{first.module.get_parameters_size(trainable_only=True):,} trainable elements"),
            ("training", f"{epochs} epochs of {steps_per_epoch} steps in {first_seconds:.1f} s"),
            ("resumed halfway", f"{resumed_seconds:.1f} s"),
            ("artifacts", str(folder)),
            ("checkpoints", f"{halfway}, {final}"),
            ("trained model", str(exported)),
            ("pictures", f"{curves}, {misread}"),
        ],
        checks,
    )
    for check in checks:
        if not check.passed:
            print(f"{check.what}: expected {check.expected}, found: {check.found}", file=sys.stderr)
    return 0 if all(check.passed for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
