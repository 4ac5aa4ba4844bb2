"""Streaming metrics: each takes batches one by one and gives its value at any time."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain._support.suggestions import did_you_mean

Array = npt.NDArray[Any]


class Metric(ABC):
    """The interface of a metric. It sums over batches, so that the value does not depend on how rows are batched.

    Parameters
    ----------
    name : str
        Its name in logs and history.
    prediction : str, optional
        The output of the model that it reads; the first one after the loss by default.
    target : str, optional
        The input of the model that it compares with; the last one by default.
    """

    reads_prediction = True
    """Whether it needs an output of the model besides the loss."""

    def __init__(self, name: str, prediction: str | None = None, target: str | None = None) -> None:
        self.name = name
        self.prediction = prediction
        self.target = target
        self.reset()

    @abstractmethod
    def reset(self) -> None:
        """Forget all batches."""

    @abstractmethod
    def update(self, prediction: Array, target: Array, loss: float) -> None:
        """Take a batch.

        Parameters
        ----------
        prediction : array
            Output of the model, ``[batch, ...]``.
        target : array
            What was expected, ``[batch, ...]``.
        loss : float
            The loss of the batch.
        """

    @abstractmethod
    def result(self) -> Any:
        """Return the value over all batches since the last reset: a float, or nested lists of numbers."""

    def state(self) -> dict[str, Any]:
        """Return the state that is needed to continue later, as plain numbers and lists."""
        plain = {}
        for key, value in vars(self).items():
            if key.startswith("_"):
                plain[key] = value.tolist() if isinstance(value, np.ndarray) else value
        return plain

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from the result of `state`."""
        for key, value in state.items():
            setattr(self, key, np.asarray(value) if isinstance(value, list) else value)


def _with_classes_second(prediction: Array, target: Array) -> Array:
    """Return scores with the classes in the second dimension, if the shape of the targets shows that they are in the last."""
    shape = prediction.shape
    last = prediction.ndim > 2 and shape[:-1] == target.shape != (shape[0], *shape[2:])
    return np.moveaxis(prediction, -1, 1) if last else prediction


def _classes_of(prediction: Array) -> Array:
    """Return the predicted class of each row: the largest of several scores, or whether a single logit is above 0."""
    if prediction.ndim == 1 or prediction.shape[1] == 1:
        return (prediction.reshape(-1) > 0).astype(np.int64)
    return np.asarray(prediction.argmax(axis=1))


def _kept(predicted: Array, target: Array, ignored: int) -> tuple[Array, Array]:
    predicted, target = predicted.reshape(-1), target.reshape(-1).astype(np.int64)
    if len(predicted) != len(target):
        raise ValueError(
            f"expected one class index for each of {len(predicted)} predictions, found {len(target)} targets"
        )
    kept = target != ignored
    return predicted[kept], target[kept]


class Accuracy(Metric):
    """The share of predicted classes that are right.

    Parameters
    ----------
    name : str, default "accuracy"
        Its name.
    ignore_index : int, default -100
        Targets of this value do not count.
    **kwargs
        As in `Metric`.
    """

    def __init__(self, name: str = "accuracy", *, ignore_index: int = -100, **kwargs: Any) -> None:
        self.ignore_index = ignore_index
        super().__init__(name, **kwargs)

    def reset(self) -> None:
        """Forget all batches."""
        self._right = self._count = 0

    def update(self, prediction: Array, target: Array, loss: float) -> None:
        """Take a batch: scores ``[batch, classes, ...]`` or ``[batch, ..., classes]``, and class indices ``[batch, ...]``."""
        prediction = _with_classes_second(prediction, target)
        predicted, expected = _kept(_classes_of(prediction), target, self.ignore_index)
        self._right += int((predicted == expected).sum())
        self._count += len(expected)

    def result(self) -> float:
        """Return the share, from 0 to 1; NaN without rows."""
        return self._right / self._count if self._count else math.nan


class TopK(Metric):
    """The share of rows whose class is among the k with the largest scores.

    Parameters
    ----------
    k : int, default 5
        How many classes count.
    name : str, optional
        Its name; ``top<k>`` by default.
    **kwargs
        As in `Metric`.
    """

    def __init__(self, k: int = 5, name: str | None = None, **kwargs: Any) -> None:
        if k < 1:
            raise ValueError(f"k: expected 1 or more, found {k}")
        self.k = k
        super().__init__(name or f"top{k}", **kwargs)

    def reset(self) -> None:
        """Forget all batches."""
        self._right = self._count = 0

    def update(self, prediction: Array, target: Array, loss: float) -> None:
        """Take a batch: scores ``[batch, classes]`` and class indices ``[batch]``."""
        rows = np.arange(len(prediction))
        own = prediction[rows, target.astype(np.int64)][:, None]
        better = (prediction > own).sum(axis=1)
        # Of equal scores the one with the lower index comes first, as in argmax.
        better += ((prediction == own) & (np.arange(prediction.shape[1]) < target[:, None])).sum(axis=1)
        self._right += int((better < self.k).sum())
        self._count += len(rows)

    def result(self) -> float:
        """Return the share, from 0 to 1; NaN without rows."""
        return self._right / self._count if self._count else math.nan


class ConfusionMatrix(Metric):
    """How often each class was predicted for rows of each class."""

    def __init__(self, name: str = "confusion_matrix", *, ignore_index: int = -100, **kwargs: Any) -> None:
        self.ignore_index = ignore_index
        super().__init__(name, **kwargs)

    def reset(self) -> None:
        """Forget all batches."""
        self._matrix: Array = np.zeros((0, 0), np.int64)

    def update(self, prediction: Array, target: Array, loss: float) -> None:
        """Take a batch: scores ``[batch, classes, ...]`` or ``[batch, ..., classes]``, and class indices ``[batch, ...]``."""
        prediction = _with_classes_second(prediction, target)
        predicted, expected = _kept(_classes_of(prediction), target, self.ignore_index)
        scores = prediction.shape[1] if prediction.ndim > 1 and prediction.shape[1] > 1 else 2
        size = max(scores, len(self._matrix), int(expected.max(initial=0)) + 1)
        if size > len(self._matrix):
            grown = np.zeros((size, size), np.int64)
            known = len(self._matrix)
            if known:
                grown[:known, :known] = self._matrix
            self._matrix = grown
        np.add.at(self._matrix, (expected, predicted), 1)

    def result(self) -> Any:
        """Return the counts as nested lists: a row per true class, a column per predicted class."""
        return self._matrix.tolist()


class F1(ConfusionMatrix):
    """The harmonic mean of precision and recall, 2 TP / (2 TP + FP + FN).

    Parameters
    ----------
    average : {"macro", "micro", "binary"}, default "macro"
        The mean over the classes that occur; one value over all rows; or the value of class 1.
    name : str, default "f1"
        Its name.
    **kwargs
        As in `Metric`.
    """

    def __init__(self, average: str = "macro", name: str = "f1", **kwargs: Any) -> None:
        if average not in ("macro", "micro", "binary"):
            raise ValueError(f"average: expected macro, micro or binary, found {average!r}")
        self.average = average
        super().__init__(name, **kwargs)

    def result(self) -> float:
        """Return the value, from 0 to 1; NaN without rows."""
        right = np.diagonal(self._matrix).astype(float)
        both = self._matrix.sum(axis=0) + self._matrix.sum(axis=1)
        if not both.any():
            return math.nan
        if self.average == "micro":
            return float(2 * right.sum() / both.sum())
        if self.average == "binary":
            return float(2 * right[1] / both[1]) if both[1] else 0.0
        occur = both > 0
        return float((2 * right[occur] / both[occur]).mean())


class MAE(Metric):
    """The mean absolute error."""

    def __init__(self, name: str = "mae", **kwargs: Any) -> None:
        super().__init__(name, **kwargs)

    def reset(self) -> None:
        """Forget all batches."""
        self._sum = 0.0
        self._count = 0

    def update(self, prediction: Array, target: Array, loss: float) -> None:
        """Take a batch of predictions and targets with the same number of elements."""
        if prediction.size != target.size:
            raise ValueError(
                f"mae: expected as many targets as predictions, found {target.shape} for {prediction.shape}"
            )
        difference = prediction.astype(np.float64) - target.reshape(prediction.shape)
        self._sum += float(np.abs(difference).sum())
        self._count += prediction.size

    def result(self) -> float:
        """Return the mean; NaN without rows."""
        return self._sum / self._count if self._count else math.nan


class Perplexity(Metric):
    """The exponential of the mean cross entropy per target.

    The loss of the model must be the mean cross entropy of a batch.
    """

    reads_prediction = False

    def __init__(self, name: str = "perplexity", *, ignore_index: int = -100, **kwargs: Any) -> None:
        self.ignore_index = ignore_index
        super().__init__(name, **kwargs)

    def reset(self) -> None:
        """Forget all batches."""
        self._sum = 0.0
        self._count = 0

    def update(self, prediction: Array, target: Array, loss: float) -> None:
        """Take the loss of a batch, weighted by its targets."""
        count = int((target != self.ignore_index).sum())
        if count:
            self._sum += loss * count
            self._count += count

    def result(self) -> float:
        """Return the perplexity; NaN without targets, infinity where it is too large for a float."""
        if not self._count:
            return math.nan
        try:
            return math.exp(self._sum / self._count)
        except OverflowError:
            return math.inf


class FunctionMetric(Metric):
    """The mean over rows of a function of predictions and targets.

    Parameters
    ----------
    function : callable
        Called with the prediction and the target of each batch; returns its mean over the rows.
    name : str, optional
        Its name; that of the function by default.
    **kwargs
        As in `Metric`.
    """

    def __init__(
        self, function: Callable[[Array, Array], Any], name: str | None = None, **kwargs: Any
    ) -> None:
        self.function = function
        super().__init__(name or str(getattr(function, "__name__", type(function).__name__)), **kwargs)

    def reset(self) -> None:
        """Forget all batches."""
        self._sum, self._count = 0.0, 0

    def update(self, prediction: Array, target: Array, loss: float) -> None:
        """Take a batch."""
        value = np.asarray(self.function(prediction, target))
        if value.size != 1:
            raise ValueError(
                f"metric {self.name!r}: expected one number for a batch, found an array of shape {value.shape}"
            )
        self._sum += float(value.item()) * len(prediction)
        self._count += len(prediction)

    def result(self) -> float:
        """Return the mean; NaN without rows."""
        return self._sum / self._count if self._count else math.nan


_BY_NAME: dict[str, Callable[[], Metric]] = {
    "accuracy": Accuracy,
    "top5": TopK,
    "f1": F1,
    "confusion_matrix": ConfusionMatrix,
    "mae": MAE,
    "perplexity": Perplexity,
}


def metric_of(given: str | Metric | Callable[[Array, Array], Any]) -> Metric:
    """Return a metric that was given as such, as a function, or by its name.

    Raises
    ------
    TypeError
        When it is neither, such as a metric of Keras.
    ValueError
        When there is no metric of this name.
    """
    if isinstance(given, Metric):
        return given
    if inspect.isroutine(given):
        return FunctionMetric(given)
    if not isinstance(given, str):
        raise TypeError(
            f"metrics: expected names, functions or instances of ortrain.trainer.Metric, found {type(given).__name__}; known "
            f"are {', '.join(_BY_NAME)} and top<k>"
        )
    if given in _BY_NAME:
        return _BY_NAME[given]()
    if given.startswith("top") and given[3:].isdigit():
        return TopK(int(given[3:]))
    raise ValueError(
        f"metrics: there is no metric {given!r}{did_you_mean(given, _BY_NAME)}; known are {', '.join(_BY_NAME)} and top<k>"
    )
