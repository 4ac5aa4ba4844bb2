"""Exports of real architectures train as in PyTorch if only a loss is given.

``tests/data/exports`` says where the exports come from. PyTorch's parameters are listed, not the initializers to be
trained: those are found by their values.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from ortrain import artifacts
from ortrain.api import CheckpointState, Module, Optimizer

Array = NDArray[Any]
Back = Callable[[Array], Array]

DATA = pathlib.Path(__file__).parents[1] / "data" / "exports"
CASES: dict[str, Any] = json.loads((DATA / "cases.json").read_text())

#: PyTorch does not train these, which no export records: they are parameters with requires_grad=False.
FROZEN_IN_PYTORCH = {"hf_whisper__dyn23d": {"embedding"}}


def rows_of(parameter: Array, found: Array) -> Back | None:
    """How gradients map back to a table of which ``found`` has some rows, some of them several times."""
    if parameter.ndim < 2 or found.ndim < 2 or found.shape[-1] != parameter.shape[-1]:
        return None
    table = parameter.reshape(-1, parameter.shape[-1])
    taken = found.reshape(-1, found.shape[-1])
    numbers = {row.tobytes(): n for n, row in enumerate(np.ascontiguousarray(table))}
    places = [numbers.get(row.tobytes()) for row in np.ascontiguousarray(taken)]
    if None in places:
        return None

    def back(gradient: Array) -> Array:
        total = np.zeros_like(table)
        np.add.at(total, places, gradient.reshape(taken.shape))
        return total.reshape(parameter.shape)

    return back


def relation(parameter: Array, found: Array) -> Back | None:
    """How a gradient of ``found`` maps back to the parameter that it was made from; None if it was not."""
    if parameter.shape == found.shape and np.array_equal(parameter, found):
        return lambda gradient: gradient
    if parameter.shape == found.shape and np.array_equal(parameter + 1, found):
        return lambda gradient: gradient
    if parameter.ndim == 2 and parameter.T.shape == found.shape and np.array_equal(parameter.T, found):
        return lambda gradient: gradient.T
    if parameter.size == found.size and np.array_equal(parameter.ravel(), found.ravel()):
        return lambda gradient: gradient.reshape(parameter.shape)
    if found.ndim and found.shape[-1:] == parameter.shape and (found == parameter).all():
        return lambda gradient: gradient.reshape(-1, parameter.size).sum(0)
    return rows_of(parameter, found)


def of_weight_norm(gain: Array, direction: Array, gradient: Array) -> tuple[Array, Array]:
    """The gradients of g and v of w = g v / |v|, from that of w; the norm keeps the axis of g's elements."""
    axes = tuple(axis for axis in range(direction.ndim) if gain.shape[axis] == 1)
    norm = np.sqrt((direction**2).sum(axes, keepdims=True))
    along = (gradient * direction).sum(axes, keepdims=True) / norm
    return along, gain / norm * (gradient - along * direction / norm)


def of_folded_normalization(
    parameters: tuple[Array, Array, Array], folded: tuple[Array, Array], gradients: tuple[Array, Array]
) -> tuple[Array, Array, Array]:
    """The gradients of w, g and b of (x w - m) / s g + b, from those of the folded w g / s and b - m g / s."""
    weight, gain, bias = parameters
    channels = (-1, *(1,) * (weight.ndim - 1))
    scale = np.median((folded[0] / weight).reshape(len(gain), -1), axis=1)  # g / s
    shift = (bias - folded[1]) / gain  # m / s
    of_weight, of_bias = gradients
    of_gain = (of_weight * weight).reshape(len(gain), -1).sum(1) * scale / gain - of_bias * shift
    return of_weight * scale.reshape(channels), of_gain, of_bias


class Export:
    def __init__(self, name: str, folder: pathlib.Path) -> None:
        self.name = name
        self.folder = folder
        self.about = CASES[name]
        with np.load(DATA / name / "record.npz") as record:
            self.record = {key: record[key] for key in record.files}
        model = onnx.load(DATA / name / "model.onnx")
        self.initializers = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        self.expected = {
            key.removeprefix("grad/"): value for key, value in self.record.items() if key.startswith("grad/")
        }
        self.parameters = {
            name: self.record.get(f"param/{name}", self.initializers.get(name)) for name in self.expected
        }
        self.batch = [self.record[f"in/{name}"] for name in self.about["inputs"]] + [self.record["target"]]

    def make(self) -> artifacts.ArtifactReport:
        return artifacts.generate_artifacts(
            DATA / self.name / "model.onnx",
            loss=artifacts.LossType[self.about["loss"]],
            optimizer=artifacts.OptimType.AdamW,
            artifact_directory=self.folder,
        )

    def session(self) -> tuple[CheckpointState, Module, Optimizer]:
        state = CheckpointState.load_checkpoint(self.folder / "checkpoint")
        module = Module(self.folder / "training_model.onnx", state, self.folder / "eval_model.onnx")
        self.initializers |= {key: parameter.data for key, parameter in state.parameters}
        return state, module, Optimizer(self.folder / "optimizer_model.onnx", module)

    def gradients(self, found: dict[str, Array]) -> dict[str, Array]:
        """The gradients of PyTorch's parameters, from those of the initializers, each of which must be used."""
        total = {name: np.zeros_like(value) for name, value in self.parameters.items()}
        unused = dict(found)

        def add(name: str, gradient: Array) -> None:
            total[name] += gradient.reshape(total[name].shape)

        if self.name == "hf_segformer__dyn18d":
            head, names = "m.decode_head", ("linear_fuse.weight", "batch_norm.weight", "batch_norm.bias")
            weight, gain, bias = (self.parameters[f"{head}.{name}"] for name in names)
            fused = (f"{head}.linear_fuse.weight", f"{head}.linear_fuse.weight_bias")
            parts = of_folded_normalization(
                (weight, gain, bias),
                (self.initializers[fused[0]], self.initializers[fused[1]]),
                (unused.pop(fused[0]), unused.pop(fused[1])),
            )
            for name, part in zip(names, parts, strict=True):
                add(f"{head}.{name}", part)
        for name in list(unused):
            if name in total:
                add(name, unused.pop(name))
        if self.name == "hf_sew__dyn18d":
            pair = [f"m.encoder.pos_conv_embed.conv.parametrizations.weight.original{n}" for n in (0, 1)]
            parts = of_weight_norm(self.parameters[pair[0]], self.parameters[pair[1]], unused.pop("mul_28"))
            for name, part in zip(pair, parts, strict=True):
                add(name, part)
        for name in list(unused):
            for parameter, value in self.parameters.items():
                back = relation(value, self.initializers[name])
                if back is not None:
                    add(parameter, back(unused.pop(name)))
                    break
        assert set(unused) == FROZEN_IN_PYTORCH.get(self.name, set()), "trained, but no parameter of PyTorch"
        return total


@pytest.mark.parametrize("name", CASES)
def test_an_export_trains_with_the_defaults_as_in_pytorch(name: str, tmp_path: pathlib.Path) -> None:
    case = Export(name, tmp_path)
    report = case.make()
    state, module, optimizer = case.session()
    assert set(report.trained) == {key for key, parameter in state.parameters if parameter.requires_grad}

    losses = []
    for step in range(5):
        loss = module(*case.batch)
        losses.append(float(loss))
        if step == 0:
            found = case.gradients({key: parameter.grad for key, parameter in state.parameters})
        optimizer.step()
        module.lazy_reset_grad()
    assert losses[0] == pytest.approx(float(case.record["loss"]), rel=1e-5)
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]

    largest = max(float(np.abs(gradient).max()) for gradient in case.expected.values())
    for parameter, expected in case.expected.items():
        error = float(np.abs(found[parameter] - expected).max())
        allowed = 1e-4 * max(float(np.abs(expected).max()), 1e-3 * largest)
        assert error <= allowed, f"gradient of {parameter}: off by {error:.3g}"
