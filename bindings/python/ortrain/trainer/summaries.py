"""Short descriptions for the log of a run: of parameters and gradients, misread rows, and the model."""

from __future__ import annotations

import base64
import heapq
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain.api import CheckpointState
from ortrain.trainer.view import TrainerView

Array = npt.NDArray[Any]
Tokens = Callable[[Array], list[str]]
"""A function that returns the names of tokens, without padding."""

BINS = 30
_COUNTED = 1 << 16  # the most elements of a tensor that a histogram counts
_SIDE = 48  # pixels of the longer side of a stored image
_VALUES = 64  # values of a stored row that is not an image
_CLASSES = 50  # the most classes for a confusion matrix


def describe_array(values: Array) -> dict[str, Any]:
    """Return norm, range and histogram of an array.

    Of an array with more than 65,536 elements, the histogram counts elements at equal distances.

    Parameters
    ----------
    values : array
        Any shape. Values that are not finite are counted in ``not_finite`` and are part of nothing else.

    Returns
    -------
    dict
        ``norm``, ``min``, ``max`` and ``counts``: the elements in 30 bins of equal width from min to max.
    """
    flat = values.ravel()
    if flat.dtype.kind != "f" or flat.dtype.itemsize < 4:
        flat = flat.astype(np.float32)
    described: dict[str, Any] = {}
    with np.errstate(all="ignore"):
        norm = float(np.sqrt(np.dot(flat, flat)))
    if not np.isfinite(norm):  # a value or its square is not finite
        finite = flat[np.isfinite(flat)].astype(np.float64)
        if len(finite) < len(flat):
            described["not_finite"] = len(flat) - len(finite)
        flat = finite
        norm = float(np.sqrt(np.dot(flat, flat)))
    if not len(flat):
        return {**described, "norm": 0.0, "min": 0.0, "max": 0.0, "counts": [0] * BINS}
    low, high = float(flat.min()), float(flat.max())
    counted = flat[:: -(-len(flat) // _COUNTED)]
    width = (high - low) / BINS
    if width > 0:
        bins = np.minimum(((counted - low) / width).astype(np.int64), BINS - 1)
        counts = np.bincount(bins, minlength=BINS).tolist()
    else:
        counts = [len(counted)] + [0] * (BINS - 1)
    return {**described, "norm": norm, "min": low, "max": high, "counts": counts}


def describe_layers(state: CheckpointState) -> dict[str, Any]:
    """Return what `describe_array` says of each trained parameter and its gradient, and the norms of all together."""
    layers: dict[str, dict[str, Any]] = {}
    for name, parameter in state.parameters:
        if not parameter.requires_grad:
            continue
        layers[name] = {"parameter": describe_array(parameter.data)}
        gradient = parameter.grad
        if gradient is not None:
            layers[name]["gradient"] = describe_array(gradient)
    found: dict[str, Any] = {}
    for kind in ("parameter", "gradient"):
        norms = [layer[kind]["norm"] for layer in layers.values() if kind in layer]
        if norms:
            found[f"{kind}_norm"] = float(np.linalg.norm(norms))
    return {**found, "layers": layers}


class Misread:
    """Collects the rows of a validation that a classifier gets wrong, the most certain mistakes first, and counts all.

    Parameters
    ----------
    limit : int
        How many are kept.
    tokens : Tokens, optional
        The names of tokens, if rows may have some.
    """

    def __init__(self, limit: int, tokens: Tokens | None = None) -> None:
        self.limit, self.tokens = limit, tokens
        self.rows = self.wrong = 0
        self.confusion: Array = np.zeros((0, 0), np.int64)  # counts by the true class and the predicted class
        self._kept: list[tuple[float, int, dict[str, Any]]] = []

    def look_at(self, batch: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Look at the rows of an eval step whose first output after the loss has a score for each class."""
        if len(outputs) < 2 or len(batch) < 2:
            return
        scores, expected = np.asarray(outputs[1]), np.asarray(batch[-1])
        if expected.dtype.kind not in "iu" or expected.ndim != 1 or scores.ndim != 2:
            return
        if scores.shape[0] != len(expected) or scores.shape[1] < 2 or not len(expected):
            return
        rows = np.arange(len(expected))
        read = scores.argmax(axis=1)
        known = (expected >= 0) & (expected < scores.shape[1])  # the loss ignores other labels
        margin = scores[rows, read] - scores[rows, np.where(known, expected, 0)]
        wrong = np.flatnonzero(known & (read != expected))
        classes = scores.shape[1]
        if classes <= _CLASSES:
            if not len(self.confusion):
                self.confusion = np.zeros((classes, classes), np.int64)
            np.add.at(self.confusion, (expected[known], read[known]), 1)
        for row in wrong[np.argsort(-margin[wrong], kind="stable")[: self.limit]]:
            number, certainty = self.rows + int(row), float(margin[row])
            if len(self._kept) == self.limit and not certainty > self._kept[0][0]:
                break
            entry = {
                "row": number,
                "predicted": int(read[row]),
                "expected": int(expected[row]),
                "margin": certainty,
                **describe_row(np.asarray(batch[0])[row], self.tokens),
            }
            keep = heapq.heappush if len(self._kept) < self.limit else heapq.heapreplace
            keep(self._kept, (certainty, -number, entry))
        self.rows += len(expected)
        self.wrong += len(wrong)

    def describe(self, inputs: Sequence[str]) -> dict[str, Any]:
        """Return the rows, given the names of the model's inputs."""
        kept = [entry for _, _, entry in sorted(self._kept, key=lambda kept: kept[:2], reverse=True)]
        return {"input": inputs[0], "rows": self.rows, "wrong": self.wrong, "samples": kept}


def describe_row(row: Array, tokens: Tokens | None = None) -> dict[str, Any]:
    """Return one row of an input: an image as bytes from the smallest value to the largest, else its first values.

    With ``tokens``, the names of whole numbers follow.

    An image has two dimensions, or three with 1 or 3 channels in the first or last one. Its longer side is made 48 pixels at
    most, by leaving out rows and columns.
    """
    pixels = row[None] if row.ndim == 2 else row
    if pixels.ndim == 3 and pixels.shape[0] not in (1, 3) and pixels.shape[2] in (1, 3):
        pixels = pixels.transpose(2, 0, 1)
    image = pixels.ndim == 3 and pixels.shape[0] in (1, 3) and min(pixels.shape[1:]) > 1
    if not image or pixels.dtype.kind not in "fiu":
        described = {"shape": list(row.shape), "values": row.ravel()[:_VALUES].tolist()}
        if tokens is not None and row.ndim == 1 and row.dtype.kind in "iu":
            described["tokens"] = tokens(row)[:_VALUES]
        return described
    stride = -(-max(pixels.shape[1:]) // _SIDE)
    pixels = np.nan_to_num(pixels[:, ::stride, ::stride].astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = float(pixels.min()), float(pixels.max())
    levels = np.rint((pixels - low) * (255 / (high - low) if high > low else 0)).astype(np.uint8)
    return {
        "shape": list(levels.shape),
        "low": low,
        "high": high,
        "pixels": base64.b64encode(levels.tobytes()).decode("ascii"),
    }


def optimizer_states(folder: Path) -> int | None:
    """Return how many arrays the optimizer keeps for each parameter; None without the package onnx.

    The optimizer model takes them as sequences, beside those of parameters and gradients.
    """
    try:
        onnx = importlib.import_module("onnx")
    except ImportError:
        return None
    inputs = onnx.load(folder / "optimizer_model.onnx", load_external_data=False).graph.input
    return max(0, sum(1 for value in inputs if value.type.HasField("sequence_type")) - 2)


def describe_model(trainer: TrainerView) -> dict[str, Any]:
    """Return the parameters of a model, and with the package onnx its nodes and the name of the optimizer."""
    parameters = {
        name: {"shape": list(parameter.data.shape), "trained": parameter.requires_grad}
        for name, parameter in trainer.state.parameters
    }
    described: dict[str, Any] = {"parameters": parameters}
    try:
        onnx = importlib.import_module("onnx")
    except ImportError:
        return described
    folder = Path(trainer.folder)
    model = next(path for name in ("eval", "training") if (path := folder / f"{name}_model.onnx").exists())
    graph = onnx.load(model, load_external_data=False).graph
    optimizer = onnx.load(folder / "optimizer_model.onnx", load_external_data=False).graph
    names = {node.op_type for node in optimizer.node if "Optimizer" in node.op_type}
    return {
        **described,
        "file": model.name,
        "inputs": [value.name for value in graph.input if value.name not in parameters],
        "outputs": [value.name for value in graph.output],
        "nodes": [
            {
                "name": node.name,
                "operator": node.op_type,
                "inputs": list(node.input),
                "outputs": list(node.output),
            }
            for node in graph.node
        ],
        "optimizer": ", ".join(sorted(name.partition("Optimizer")[0] for name in names)),
    }
