"""Train on handwritten digits with TrainingSession, the older Python API, in a loop as ORTTrainer had it.

Adam with two parameter groups, accumulated and clipped gradients, mixed precision with a loss scaler, a schedule, a
checkpoint in the middle and a second session that resumes from it. The run exits with status 1 if the resumed run
differs from the first one in a single bit, or if too many digits are misread.

With --mpi, several processes share each batch: mpiexec -n 2 python examples/older_api/train.py --mpi.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import ortrain
from onnx import TensorProto, helper, numpy_helper
from ortrain.distributed import gather_state
from sklearn.datasets import load_digits

BATCH, ACCUMULATED, EPOCHS = 24, 2, 12
LEARNING_RATE = 5e-3
LOWEST_ACCURACY = 0.95

Array = np.ndarray[Any, Any]


def build_model(seed: int) -> bytes:
    """Return a network of two layers, which ends in the loss."""
    rng = np.random.default_rng(seed)
    weights = {
        "W1": rng.normal(size=(64, 96)) * 0.18,
        "b1": np.zeros(96),
        "W2": rng.normal(size=(96, 10)) * 0.14,
        "b2": np.zeros(10),
    }
    nodes = [
        helper.make_node("Gemm", ["images", "W1", "b1"], ["h0"]),
        helper.make_node("Relu", ["h0"], ["h1"]),
        helper.make_node("Gemm", ["h1", "W2", "b2"], ["logits"]),
        helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "labels"], ["loss"]),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [
            helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 64]),
            helper.make_tensor_value_info("labels", TensorProto.INT64, ["batch"]),
        ],
        [
            helper.make_tensor_value_info("loss", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10]),
        ],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    return model.SerializeToString()


@dataclass
class LossScaler:
    """The loss scale: halved after a gradient that is not finite, doubled after many that are."""

    scale: float = 2.0**16
    patience: int = 200
    good: int = 0

    def update(self, finite: bool) -> None:
        """Take note of a step."""
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.scale = max(1.0, self.scale / 2)
        elif self.good % self.patience == 0:
            self.scale = min(2.0**24, self.scale * 2)


@dataclass
class Processes:
    """The processes that train: this one alone, or those that MPI has started."""

    rank: int = 0
    size: int = 1

    @classmethod
    def of_mpi(cls) -> Processes:
        """Return those of MPI."""
        from mpi4py import MPI

        return cls(MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)

    def part(self, values: Array) -> Array:
        """Return this process's part of a batch."""
        return values[self.rank * len(values) // self.size : (self.rank + 1) * len(values) // self.size]


@dataclass
class Trainer:
    """A session with the additional state of an ORTTrainer."""

    precision: str
    processes: Processes = field(default_factory=Processes)
    updates: int = 0
    scaler: LossScaler = field(default_factory=LossScaler)

    def __post_init__(self) -> None:
        parameters = ortrain.TrainingParameters()
        parameters.loss_output_name = "loss"
        parameters.weights_to_train = {"W1", "b1", "W2", "b2"}
        parameters.training_optimizer_name = "AdamOptimizer"
        # Two groups: matrices decay, biases do not.
        decays = {"W1": 0.01, "W2": 0.01, "b1": 0.0, "b2": 0.0}
        parameters.optimizer_attributes_map = {
            name: {"alpha": 0.9, "beta": 0.999, "lambda": decay, "max_norm_clip": 1.0}
            for name, decay in decays.items()
        }
        parameters.optimizer_int_attributes_map = {
            name: {"do_bias_correction": 1, "weight_decay_mode": 0} for name in decays
        }
        parameters.gradient_accumulation_steps = ACCUMULATED
        parameters.enable_grad_norm_clip = True
        parameters.use_mixed_precision = self.precision != "float32"
        parameters.world_rank, parameters.world_size = self.processes.rank, self.processes.size
        parameters.data_parallel_size = self.processes.size
        parameters.allreduce_post_accumulation = True
        options = ortrain.SessionOptions()
        if self.precision == "bfloat16":
            options.add_session_config_entry("ortrain.mixed_precision", "bf16")
        self.session = ortrain.TrainingSession(build_model(0), parameters, options)
        self.accumulate, self.evaluate = ortrain.RunOptions(), ortrain.RunOptions()
        self.accumulate.only_execute_path_to_fetches = True
        self.evaluate.only_execute_path_to_fetches = True
        self.evaluate.training_mode = False

    def _feed(self, images: Array, labels: Array, rate: float) -> dict[str, Array]:
        feed = {"images": images, "labels": labels, "Learning_Rate": np.array([rate], np.float32)}
        if self.session.loss_scale_input_name:
            feed[self.session.loss_scale_input_name] = np.array([self.scaler.scale], np.float32)
        return feed

    def update(self, parts: list[tuple[Array, Array]], rate: float) -> float:
        """Accumulate the gradients of all parts, update the weights and return the mean loss."""
        parts = [(self.processes.part(images), self.processes.part(labels)) for images, labels in parts]
        losses = []
        for images, labels in parts[:-1]:
            fetch = ["loss", "Group_Accumulated_Gradients"]
            losses.append(self.session.run(fetch, self._feed(images, labels, rate), self.accumulate)[0])
        mixed = self.session.loss_scale_input_name is not None
        found = self.session.run(
            ["loss", "all_gradients_finite"] if mixed else ["loss"], self._feed(*parts[-1], rate)
        )
        losses.append(found[0])
        if mixed:
            self.scaler.update(bool(found[1]))
        self.updates += 1
        return float(np.mean(losses))

    def accuracy(self, images: Array, labels: Array) -> float:
        """Return the share of images that are read right."""
        logits = self.session.run(["logits"], self._feed(images, labels, 0.0), self.evaluate)[0]
        return float((logits.argmax(1) == labels).mean())

    def save(self, path: Path) -> None:
        """Write a checkpoint, from which any number of processes can continue. Every process calls this."""
        more = {"updates": self.updates, "scale": self.scaler.scale, "good": self.scaler.good}
        state = self.session.get_state() if self.processes.size == 1 else gather_state(self.session)
        if self.processes.rank == 0:
            temporary = path.with_suffix(".new.npz")
            np.savez(temporary, **state, **{f"trainer.{name}": value for name, value in more.items()})
            temporary.replace(path)  # the file is whole at any time

    def load(self, path: Path) -> None:
        """Continue from a checkpoint."""
        with np.load(path) as checkpoint:
            state = {name: checkpoint[name] for name in checkpoint.files if not name.startswith("trainer.")}
            self.session.load_state(state, strict=True)
            self.updates = int(checkpoint["trainer.updates"])
            self.scaler.scale, self.scaler.good = (
                float(checkpoint["trainer.scale"]),
                int(checkpoint["trainer.good"]),
            )


def batches(images: Array, labels: Array, epoch: int) -> Iterator[list[tuple[Array, Array]]]:
    """Yield the parts of each update of an epoch."""
    order = np.random.default_rng(epoch).permutation(len(labels))
    for start in range(0, len(order) - BATCH * ACCUMULATED + 1, BATCH * ACCUMULATED):
        parts = order[start : start + BATCH * ACCUMULATED].reshape(ACCUMULATED, BATCH)
        yield [(images[part], labels[part]) for part in parts]


def run(trainer: Trainer, train: tuple[Array, Array], epochs: range, total: int) -> list[float]:
    """Train for some epochs and return the losses."""
    losses = []
    for epoch in epochs:
        for parts in batches(*train, epoch):
            rate = LEARNING_RATE * (1 - trainer.updates / total)
            losses.append(trainer.update(parts, rate))
        if trainer.processes.rank == 0:
            print(f"epoch {epoch + 1}: loss {np.mean(losses[-20:]):.4f}", flush=True)
    return losses


def main(arguments: list[str] | None = None) -> int:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--precision", choices=("float32", "float16", "bfloat16"), default="float32")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/older_api"),
        help="folder for the checkpoint (default build/older_api)",
    )
    parser.add_argument("--mpi", action="store_true", help="train in the processes that mpiexec has started")
    options = parser.parse_args(arguments)
    processes = Processes.of_mpi() if options.mpi else Processes()
    options.out.mkdir(parents=True, exist_ok=True)

    pixels, labels = load_digits(return_X_y=True)
    images, labels = (pixels / 16).astype(np.float32), labels.astype(np.int64)
    held_out = np.random.default_rng(1797).permutation(len(labels)) % 4 == 0
    train, test = (images[~held_out], labels[~held_out]), (images[held_out], labels[held_out])
    total = EPOCHS * (len(train[1]) // (BATCH * ACCUMULATED))

    checkpoint = options.out / "halfway.npz"
    trainer = Trainer(options.precision, processes)
    run(trainer, train, range(EPOCHS // 2), total)
    trainer.save(checkpoint)
    run(trainer, train, range(EPOCHS // 2, EPOCHS), total)

    resumed = Trainer(options.precision, processes)
    resumed.load(checkpoint)  # rank 0 has written the file
    run(resumed, train, range(EPOCHS // 2, EPOCHS), total)
    state = resumed.session.get_state()
    differing = [
        name for name, value in trainer.session.get_state().items() if not np.array_equal(value, state[name])
    ]
    if differing:
        print(f"the resumed run differs in {', '.join(differing)}")
        return 1
    accuracy = trainer.accuracy(*test)
    if processes.rank == 0:
        print(f"{options.precision}: {accuracy:.1%} of {len(test[1])} held-out digits are read right")
    return 0 if accuracy >= LOWEST_ACCURACY else 1


if __name__ == "__main__":
    sys.exit(main())
