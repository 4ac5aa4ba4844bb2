"""Fine-tunes a model on a folder of images with one folder per class; see README.md in this folder for details."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ortrain import OrtrainError, _ortrain
from ortrain.api import CheckpointState, Module, Optimizer

MASK = (1 << 64) - 1


class Refused(Exception):
    """The given files are invalid; the message says why."""


@dataclass(frozen=True)
class Samples:
    """Images with their class indices.

    Attributes
    ----------
    pixels : numpy.ndarray
        float32, from 0 to 1; the first dimension counts the images, the others are those of the model's input.
    labels : numpy.ndarray
        int64, one per image.
    """

    pixels: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return images and labels of some samples."""
        return self.pixels[numbers], self.labels[numbers]


# Samples.


def read_header(content: bytes) -> tuple[int, int, int, int]:
    """Return width, height, maximum value, and the offset of the pixels."""
    if content[:2] != b"P5":
        raise ValueError
    numbers: list[int] = []
    at = 2
    while len(numbers) < 3:
        if not content[at : at + 1].isspace():
            raise ValueError
        while content[at : at + 1].isspace() or content[at : at + 1] == b"#":
            at = content.index(b"\n", at) if content[at : at + 1] == b"#" else at + 1
        end = at
        while content[end : end + 1].isdigit():
            end += 1
        numbers.append(int(content[at:end]))
        at = end
    width, height, greatest = numbers
    if not content[at : at + 1].isspace() or not 1 <= greatest <= 255:
        raise ValueError
    return width, height, greatest, at + 1


def read_image(path: Path, size: int) -> np.ndarray:
    """Return the pixels of an image that must have `size` of them."""
    content = path.read_bytes()
    try:
        width, height, greatest, start = read_header(content)
    except ValueError:
        raise Refused(f"{path}: expected an 8-bit binary PGM image (P5)") from None
    if width * height != size:
        raise Refused(f"{path}: expected {size} pixels, found {width} x {height}")
    if len(content) - start != size:
        raise Refused(f"{path}: expected {size} bytes of pixels, found {len(content) - start}")
    pixels: np.ndarray = np.frombuffer(content, np.uint8, offset=start).astype(np.float32)
    scaled: np.ndarray = pixels / np.float32(greatest)
    return scaled


def entries(folder: Path) -> list[Path]:
    """Return the entries of a folder, sorted by name, without hidden files."""
    return sorted((path for path in folder.iterdir() if not path.name.startswith(".")), key=lambda p: p.name)


def read_samples(folder: Path, shape: list[int]) -> tuple[Samples, Samples, int]:
    """Return the samples for training, those that are held out, and the number of classes."""
    classes = entries(folder)
    for path in classes:
        if not (path.is_dir() and path.name.isascii() and path.name.isdigit() and len(path.name) <= 9):
            raise Refused(f"{path}: expected a folder named by the number of its class")
    found = [(int(path.name), image) for path in classes for image in entries(path)]
    found.sort(key=lambda sample: sample[0])  # keeps the order within a class
    images = [read_image(image, math.prod(shape)) for _, image in found]
    pixels = np.array(images, np.float32).reshape(len(images), *shape)
    labels = np.array([label for label, _ in found], np.int64)
    held_out = np.arange(len(labels)) % 5 == 4
    train = Samples(pixels[~held_out], labels[~held_out])
    return train, Samples(pixels[held_out], labels[held_out]), len(classes)


def shuffled(count: int, seed: int, epoch: int) -> np.ndarray:
    """Return the indices 0 to count - 1 in the order of an epoch: Fisher-Yates with SplitMix64."""
    order = list(range(count))
    state = (seed << 32) + epoch
    for i in range(count - 1, 0, -1):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        j = (z ^ (z >> 31)) % (i + 1)
        order[i], order[j] = order[j], order[i]
    return np.array(order)


# Training.


class Personalization:
    """A training session on the artifacts of a model.

    Parameters
    ----------
    artifacts : Path
        The folder of the artifacts.
    checkpoint : Path
        The checkpoint to start from.
    """

    def __init__(self, artifacts: Path, checkpoint: Path) -> None:
        train_model = artifacts / "training_model.onnx"
        self.state = CheckpointState.load_checkpoint(checkpoint)
        self.module = Module(train_model, self.state, artifacts / "eval_model.onnx")
        self.optimizer = Optimizer(artifacts / "optimizer_model.onnx", self.module)
        # The classes of this API do not expose the shape of an input; the layer below does.
        kind, dimensions, _ = _ortrain.get_model_input_type_info(self.module._handle, True, 0)
        if (
            _ortrain.numpy_type(kind) != np.float32
            or dimensions[:1] != [-1]
            or min(dimensions[1:], default=0) < 1
        ):
            raise Refused(
                f"{train_model}: expected a first input of floats with a variable batch and fixed dimensions, "
                f"found {_ortrain.numpy_type(kind)}{dimensions}"
            )
        self.shape = dimensions[1:]

    def train_epoch(self, samples: Samples, order: np.ndarray, batch: int, title: str) -> float:
        """Take a step for every full batch; return the mean loss."""
        steps = len(samples) // batch
        total = 0.0
        began = time.monotonic()
        self.module.train()
        for step in range(1, steps + 1):
            loss = self.module(*samples.batch(order[(step - 1) * batch : step * batch]))
            self.optimizer.step()
            self.module.lazy_reset_grad()
            total += float(loss[0] if isinstance(loss, tuple) else loss)
            if sys.stdout.isatty():
                bar = "#" * (20 * step // steps)
                speed = step * batch / (time.monotonic() - began)
                print(
                    f"\r{title}  [{bar:.<20}]  {step}/{steps}  loss {total / step:.4f}  {speed:.0f} samples/s",
                    end="",
                    flush=True,
                )
        return total / steps

    def evaluate(self, samples: Samples, batch: int) -> tuple[float, int | None]:
        """Return the mean loss, and the number of samples classified correctly if the model has scores."""
        self.module.eval()
        total, right, has_scores = 0.0, 0, False
        for start in range(0, len(samples), batch):
            images, labels = samples.batch(np.arange(start, min(start + batch, len(samples))))
            outputs = self.module(images, labels)
            loss, *others = outputs if isinstance(outputs, tuple) else (outputs,)
            total += float(loss) * len(labels)
            if (
                others
                and others[0].dtype == np.float32
                and others[0].ndim == 2
                and len(others[0]) == len(labels)
            ):
                has_scores = True
                right += int((others[0].argmax(axis=1) == labels).sum())
        return total / len(samples), right if has_scores else None

    def save(self, path: Path, epochs: int, loss: float) -> None:
        """Save everything needed to resume."""
        self.state.properties["epochs"] = epochs
        self.state.properties["loss"] = loss
        CheckpointState.save_checkpoint(self.state, path, include_optimizer_state=True)


def personalize(options: argparse.Namespace) -> None:
    """Carry out the command line."""
    checkpoint = options.resume or options.artifacts / "checkpoint"
    training = Personalization(options.artifacts, checkpoint)
    outputs = training.module.eval().output_names()
    if options.output is None and len(outputs) < 2:
        raise Refused(
            f"{options.artifacts / 'eval_model.onnx'}: it has no output besides the loss; "
            "name a value to export with --output"
        )
    output = options.output or outputs[1]

    train, held_out, classes = read_samples(options.samples, training.shape)
    if len(held_out) < 1 or len(train) < options.batch:
        raise Refused(
            f"{options.samples}: expected at least 5 samples and {options.batch} for training, "
            f"found {len(train) + len(held_out)} and {len(train)}"
        )
    done = dict(training.state.properties).get("epochs") if options.resume else 0
    if not isinstance(done, int):
        raise Refused(
            f"{checkpoint}: expected a checkpoint that this program saved, with the property epochs"
        )
    if done >= options.epochs:
        raise Refused(
            f"{checkpoint}: it has {done} epochs already; expected a larger --epochs, found {options.epochs}"
        )
    options.out.mkdir(exist_ok=True)
    print(
        f"{len(train) + len(held_out)} samples of {classes} classes: "
        f"{len(train)} for training, {len(held_out)} held out",
        flush=True,
    )

    training.optimizer.set_learning_rate(options.learning_rate)
    for epoch in range(done + 1, options.epochs + 1):
        title = f"epoch {epoch}/{options.epochs}"
        order = shuffled(len(train), options.seed, epoch)
        loss = training.train_epoch(train, order, options.batch, title)
        held_out_loss, right = training.evaluate(held_out, options.batch)
        line = f"{title}: loss {loss:.4f}, held-out loss {held_out_loss:.4f}"
        if right is not None:
            tenths = (1000 * right + len(held_out) // 2) // len(held_out)
            line += f", accuracy {tenths // 10}.{tenths % 10}%"
        # On a terminal this overwrites the progress line and clears the rest of it.
        print(f"\r{line}\033[K" if sys.stdout.isatty() else line, flush=True)
        training.save(options.out / "checkpoint", epoch, loss)
    print(f"saved {options.out / 'checkpoint'}")
    training.module.export_model_for_inferencing(options.out / "model.onnx", [output])
    print(f"exported {options.out / 'model.onnx'} with output {output}")


# The command line.


def whole_number(lowest: int, highest: int = 2**31 - 1) -> Callable[[str], int]:
    """Return a parser for a whole number within a range."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not lowest <= int(text) <= highest:
            raise argparse.ArgumentTypeError(
                f"expected a whole number from {lowest} to {highest}, found {text}"
            )
        return int(text)

    return read


def rate(text: str) -> float:
    """Read a learning rate."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a finite number above 0, found {text}")
    return value


def main() -> int:
    """Run the program; returns the exit status."""
    parser = argparse.ArgumentParser("personalize", description=__doc__, allow_abbrev=False)
    parser.add_argument("artifacts", type=Path, metavar="ARTIFACTS", help="folder of the training artifacts")
    parser.add_argument(
        "samples", type=Path, metavar="SAMPLES", help="folder with one folder of PGM images per class"
    )
    parser.add_argument(
        "out", type=Path, metavar="OUT", help="folder for the checkpoint and the trained model"
    )
    parser.add_argument(
        "--epochs", type=whole_number(1), default=5, metavar="N", help="total number of epochs (default 5)"
    )
    parser.add_argument(
        "--batch", type=whole_number(1), default=16, metavar="N", help="samples per step (default 16)"
    )
    parser.add_argument("--learning-rate", type=rate, default=1e-3, metavar="X", help="default 0.001")
    parser.add_argument(
        "--seed", type=whole_number(0), default=0, metavar="N", help="seed of the shuffling (default 0)"
    )
    parser.add_argument(
        "--output", metavar="NAME", help="value to export (default: the eval model's second output)"
    )
    parser.add_argument("--resume", type=Path, metavar="CHECKPOINT", help="resume from this checkpoint")
    options = parser.parse_args()
    try:
        personalize(options)
    except OrtrainError as error:  # a subclass of it is an OSError too
        message = error.message
    except OSError as error:
        message = f"{error.filename}: {error.strerror}"
    except Refused as error:
        message = str(error)
    else:
        return 0
    print(f"error: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
