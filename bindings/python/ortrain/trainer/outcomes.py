"""Results of a validation for the log of a run: predicted and actual numbers, and a map of the rows."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain.trainer.summaries import Tokens, describe_row

Array = npt.NDArray[Any]

POINTS = 300
"""The number of rows of a validation in the log's pictures."""

_WIDEST = 4096  # the most numbers of a row that a projection reads


class Chosen:
    """Some rows of a validation, chosen at random, the same ones in each validation of the same data.

    Parameters
    ----------
    limit : int
        How many are kept.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._random = np.random.default_rng(0)
        self._priorities: Array = np.zeros(0)
        self.columns: dict[str, Array] = {}

    def add(self, columns: dict[str, Array]) -> None:
        """Look at the rows of a batch, given as arrays of the same length."""
        count = len(next(iter(columns.values())))
        priorities = np.concatenate([self._priorities, self._random.random(count)])
        kept = np.sort(np.argsort(priorities, kind="stable")[: self.limit])
        self._priorities = priorities[kept]
        for name, values in columns.items():
            before = self.columns.get(name, values[:0])
            self.columns[name] = np.concatenate([before, values])[kept]


class Regression:
    """Collects the numbers that a model predicts in a validation, and the rows with the largest errors.

    Parameters
    ----------
    limit : int
        How many rows with large errors are kept.
    tokens : Tokens, optional
        The names of tokens.
    """

    def __init__(self, limit: int, tokens: Tokens | None = None) -> None:
        self.limit, self.tokens = limit, tokens
        self.rows, self._squares = 0, 0.0
        self._points = Chosen(POINTS)
        self._kept: list[tuple[float, int, dict[str, Any]]] = []

    def look_at(self, batch: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Look at the rows of an eval step whose first output after the loss is one number for each row."""
        if len(outputs) < 2 or len(batch) < 2:
            return
        predicted, expected = np.asarray(outputs[1]), np.asarray(batch[-1])
        rows = len(expected) if expected.ndim else 0
        if expected.dtype.kind != "f" or not rows or predicted.size != rows or expected.size != rows:
            return
        predicted, expected = (
            predicted.reshape(rows).astype(np.float64),
            expected.reshape(rows).astype(np.float64),
        )
        finite = np.isfinite(predicted) & np.isfinite(expected)
        errors = np.where(finite, np.abs(predicted - expected), np.inf)
        self._squares += float(np.square(errors[finite]).sum())
        self._points.add({"predicted": predicted, "expected": expected, "row": self.rows + np.arange(rows)})
        for row in np.argsort(-errors, kind="stable")[: self.limit]:
            number, error = self.rows + int(row), float(errors[row])
            if len(self._kept) == self.limit and not error > self._kept[0][0]:
                break
            entry = {
                "row": number,
                "predicted": float(predicted[row]),
                "expected": float(expected[row]),
                **describe_row(np.asarray(batch[0])[row], self.tokens),
            }
            keep = heapq.heappush if len(self._kept) < self.limit else heapq.heapreplace
            keep(self._kept, (error, -number, entry))
        self.rows += rows

    def describe(self) -> dict[str, Any]:
        """Return some rows as points, and those with the largest errors."""
        kept = [entry for _, _, entry in sorted(self._kept, key=lambda kept: kept[:2], reverse=True)]
        points = self._points.columns
        return {
            "rows": self.rows,
            "error": float(np.sqrt(self._squares / self.rows)),
            "points": {name: values.tolist() for name, values in points.items()},
            "samples": kept,
        }


class Projection:
    """Collects rows of a validation and projects them to two dimensions: what the model takes, and what it returns."""

    def __init__(self) -> None:
        self.rows = 0
        self._chosen = Chosen(POINTS)

    def look_at(self, batch: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Look at the rows of an eval step with one target for each row."""
        if len(outputs) < 2 or len(batch) < 2:
            return
        expected = np.asarray(batch[-1])
        rows = len(expected) if expected.ndim else 0
        if not rows or expected.size != rows or expected.dtype.kind not in "iuf":
            return
        columns = {"expected": expected.reshape(rows), "row": self.rows + np.arange(rows)}
        for name, values in (("inputs", np.asarray(batch[0])), ("outputs", np.asarray(outputs[1]))):
            if values.dtype.kind == "f" and values.ndim > 1 and len(values) == rows:
                flat = values.reshape(rows, -1)
                columns[name] = flat[:, :: -(-flat.shape[1] // _WIDEST)].astype(np.float32)
        self._chosen.add(columns)
        self.rows += rows

    def describe(self) -> dict[str, Any] | None:
        """Return the points, None if there are no rows that can be projected."""
        columns = self._chosen.columns
        found = {
            name: projected(columns[name].astype(np.float64))
            for name in ("inputs", "outputs")
            if name in columns and columns[name].shape[1] > 2 and len(columns[name]) > 2
        }
        if not found:
            return None
        return {
            "rows": self.rows,
            "expected": columns["expected"].tolist(),
            "row": columns["row"].tolist(),
            "of": found,
        }


def projected(rows: Array) -> dict[str, Any]:
    """Return rows on their first two principal components, and the share of the variance that each of these has.

    Parameters
    ----------
    rows : array of float
        ``[rows, numbers]``. Values that are not finite count as 0.

    Returns
    -------
    dict
        ``points``, a pair for each row, and ``variance``, two shares of 1. The largest entry of a component is positive.
    """
    rows = np.nan_to_num(rows, posinf=0.0, neginf=0.0)
    centered = rows - rows.mean(axis=0)
    left, scales, components = np.linalg.svd(centered, full_matrices=False)
    largest = components[np.arange(len(components)), np.abs(components).argmax(axis=1)]
    points = (left * scales * np.where(largest < 0, -1.0, 1.0))[:, :2]
    total = float(np.square(scales).sum())
    shares = np.square(scales[:2]) / total if total else np.zeros(2)
    return {
        "points": [[float(f"{value:.5g}") for value in point] for point in points],
        "variance": [float(share) for share in shares],
    }
