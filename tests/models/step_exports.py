"""The exported models of the tests, each with a loss, an optimizer and batches, and steps with them on two runtimes."""

from __future__ import annotations

import json
import lzma
import math
import pathlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import ortrain
from numpy.typing import NDArray
from ortrain import artifacts, step
from step_record import Entry
from training import Training

Array = NDArray[Any]
TESTS = pathlib.Path(__file__).parents[1]
STEPS = 20
#: Half of the recorded learning rates, with which some losses rise at times, so that rounding is not amplified.
_OF_RECORDED = 0.5
_LOSSES = {
    "cross_entropy": "CrossEntropyLoss",
    "bce": "BCEWithLogitsLoss",
    "mse": "MSELoss",
    "reconstruction": "MSELoss",
}


@dataclass(frozen=True)
class Exported:
    """A model and what it is trained with.

    Attributes
    ----------
    name, made_by : which model it is, and its exporter.
    file : the model, compressed if it ends in ``.xz``.
    loss : the name of a loss on its first output; None if that is the loss.
    optimizer, rate : ``AdamW`` or ``SGD``, and the learning rate.
    batches : they take turns.
    options : further arguments of ``generate_step``.
    random : whether it has Dropout in training mode.
    """

    name: str
    made_by: str
    file: pathlib.Path
    loss: str | None
    optimizer: str
    rate: float
    batches: list[list[Array]]
    options: dict[str, Any] = field(default_factory=dict)
    random: bool = False

    def model(self) -> onnx.ModelProto:
        """Return the model."""
        data = self.file.read_bytes()
        return onnx.load_model_from_string(lzma.decompress(data) if self.file.suffix == ".xz" else data)


def _arrays(path: pathlib.Path) -> dict[str, Array]:
    with np.load(path) as arrays:
        return {key: arrays[key] for key in arrays.files}


def _architectures() -> Iterator[Exported]:
    folder = TESTS / "models" / "data"
    for name, case in json.loads((folder / "cases.json").read_text()).items():
        record = _arrays(folder / name / "record.npz")
        batch = [value for key, value in record.items() if key.startswith("batch/input/")]
        of_input = case["loss"] == "reconstruction"
        for export in case["exports"]:
            yield Exported(
                f"{name}/{export}", "PyTorch " + export.split("_")[0], folder / name / f"{export}.onnx",
                _LOSSES[case["loss"]], {"sgd": "SGD", "adamw": "AdamW"}[case["optimizer"]], case["lr"] * _OF_RECORDED,
                [batch if of_input else [*batch, record["batch/target"]]],
                {"loss_input_names": ["output", "images"]} if of_input else {}, case["random"],
            )  # fmt: skip


def _transformers() -> Iterator[Exported]:
    folder = TESTS / "data" / "exports"
    for name, case in json.loads((folder / "cases.json").read_text()).items():
        record = _arrays(folder / name / "record.npz")
        batch = [record[f"in/{key}"] for key in case["inputs"]] + [record["target"]]
        yield Exported(
            name.replace("__", "/"), "PyTorch " + case["exporter"], folder / name / "model.onnx",
            case["loss"], "AdamW", 1e-3, [batch],
        )  # fmt: skip


def _fresh() -> Iterator[Exported]:
    folder = TESTS / "data" / "fresh"
    for name, case in json.loads((folder / "cases.json").read_text()).items():
        batch = _arrays(folder / name / "batch.npz")
        exporter = {"dyn": "dynamo", "ts": "torchscript"}[name.rsplit("_", 1)[1]]
        yield Exported(
            f"fresh/{name}", f"PyTorch {exporter}", folder / name / "model.onnx.xz", "MSELoss", "SGD",
            case["rate"] * _OF_RECORDED, [[batch["in_0"], batch["target"]]],
        )  # fmt: skip


def _recorded() -> Iterator[Exported]:
    for folder in sorted((TESTS / "data" / "fixtures").glob("*/")):
        expected = json.loads((folder / "expected.json").read_text())
        arrays = _arrays(folder / "batches.npz")
        frozen = expected["frozen_params"]
        yield Exported(
            f"recorded/{folder.name}", "PyTorch torchscript", folder / "model.onnx", expected["loss"],
            expected["optimizer"], 1e-3, [[arrays[f"x{i}"], arrays[f"y{i}"]] for i in range(len(arrays) // 2)],
            {"requires_grad": expected["requires_grad"], "frozen_params": frozen},
        )  # fmt: skip


def _control_flow() -> Iterator[Exported]:
    for file in sorted((TESTS / "data" / "torch_control_flow").glob("*.onnx")):
        arrays = _arrays(file.with_suffix(".npz"))
        given = [value.name for value in onnx.load(file).graph.input]
        batches = [[arrays[f"{key}{i}"] for key in given] for i in (0, 1)]
        trained = [key.removesuffix("_grad0") for key in arrays if key.endswith("_grad0")]
        yield Exported(
            f"control flow/{file.stem}", "PyTorch", file, None, "SGD", 0.05, batches, {"requires_grad": trained}
        )  # fmt: skip


def exported() -> list[Exported]:
    """Return all."""
    return [*_architectures(), *_transformers(), *_fresh(), *_recorded(), *_control_flow()]


def train(model: Exported, folder: pathlib.Path) -> tuple[list[float], list[float], Entry]:
    """Train in ortrain and, with a step model, in onnxruntime; return the losses and what is recorded of the model.

    A network with Dropout draws other masks in a training session, so ortrain runs its step model instead.
    """
    given = model.model()
    report = artifacts.generate_step(
        given,
        loss=None if model.loss is None else artifacts.LossType[model.loss],
        optimizer=artifacts.OptimType[model.optimizer],
        path=folder / "step.onnx",
        **model.options,
    )
    made = onnx.load(folder / "step.onnx")
    onnx.checker.check_model(made, full_check=True)
    assert {entry.domain for entry in made.opset_import} <= {"", "ai.onnx.ml"}
    there = step.Session(folder / "step.onnx", learning_rate=model.rate)
    found, expected = [], _ortrain_runs_the_step(folder, model) if model.random else _ortrain(folder, model)
    for i in range(STEPS):
        found.append(float(there(*model.batches[i % len(model.batches)])))
    difference = max(abs(a / b - 1) for a, b in zip(found, expected, strict=True))
    entry = Entry(
        model.made_by, made.opset_import[0].version, model.optimizer, len(report.trained), len(given.graph.node),
        len(made.graph.node), _rounded_up(difference),
    )  # fmt: skip
    return expected, found, entry


def _ortrain(folder: pathlib.Path, model: Exported) -> list[float]:
    here = Training(folder)
    here.optimizer.set_learning_rate(model.rate)
    return [here.step(*model.batches[i % len(model.batches)]) for i in range(STEPS)]


def _ortrain_runs_the_step(folder: pathlib.Path, model: Exported) -> list[float]:
    """The losses of the step model in ortrain's own InferenceSession, with the seeds that a step session takes."""
    made = onnx.load(folder / "step.onnx")
    about = json.loads(next(e.value for e in made.metadata_props if e.key == "ortrain.step"))
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in made.graph.initializer}
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in made.graph.input}
    state = {name: weights.get(name, np.zeros(shapes[name], np.float32)) for name in about["state"]}
    state["step"] = np.array(0, np.int64)
    session = ortrain.InferenceSession(str(folder / "step.onnx"))
    names, losses = [about["outputs"][0], *about["state"].values()], []
    for i in range(STEPS):
        feeds = dict(zip(about["batch"], model.batches[i % len(model.batches)], strict=True)) | state
        feeds |= {"learning_rate": np.array(model.rate, np.float32), "seed": np.array(i, np.int64)}
        loss, *values = session.run(names, feeds)
        state = dict(zip(about["state"], values, strict=True))
        losses.append(float(loss))
    return losses


def _rounded_up(difference: float) -> float:
    """Return a difference rounded up to one digit, which hardly depends on the machine."""
    if difference == 0:
        return 0.0
    digit = 10.0 ** math.floor(math.log10(difference))
    return float(f"{math.ceil(difference / digit) * digit:.0e}")
