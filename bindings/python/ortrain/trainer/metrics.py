"""Streaming metrics: each takes batches one by one and gives its value at any time."""

from __future__ import annotations

import functools
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
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


def _as_classes(prediction: Array, target: Array) -> Array:
    """Return the likeliest class of targets that are a probability for each class; other targets unchanged."""
    if target.dtype.kind != "f" or target.shape != prediction.shape or target.ndim < 2 or target.shape[1] < 2:
        return target
    sums = target.sum(axis=1)
    if not np.allclose(sums, 1, atol=1e-3):
        raise ValueError(
            "metrics: expected probabilities of classes as targets, whose sum over the classes is 1, found the sum "
            f"{float(sums.ravel()[np.argmax(np.abs(sums - 1))]):g}; of rows with several labels, auc_multilabel can be computed"
        )
    return np.asarray(target.argmax(axis=1))


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
        target = _as_classes(prediction, target)
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
        target = _as_classes(prediction, target)
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
        target = _as_classes(prediction, target)
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


class IoU(ConfusionMatrix):
    """The mean over the classes that occur of intersection over union, TP / (TP + FP + FN).

    Of pictures whose pixels have classes, it is the mean of the overlaps of predicted and true areas.
    """

    def __init__(self, name: str = "iou", **kwargs: Any) -> None:
        super().__init__(name, **kwargs)

    def result(self) -> float:
        """Return the value, from 0 to 1; NaN without rows."""
        right = np.diagonal(self._matrix).astype(float)
        union = self._matrix.sum(axis=0) + self._matrix.sum(axis=1) - right
        occur = union > 0
        return float((right[occur] / union[occur]).mean()) if occur.any() else math.nan


_MOST_SCORES = 1 << 16


class _Ranking:
    """How often each score was given to rows inside and outside of a class, in limited memory.

    Scores are counted by the bits of a float32 in an order in which larger scores have larger numbers. If there are more
    different ones than are kept, those that differ in their last bits only are counted together.
    """

    def __init__(self, state: Sequence[Any] = (0, (), (), ())) -> None:
        self.dropped, keys, outside, inside = state
        self.keys = np.asarray(keys, np.uint32)
        self.counts = np.array([outside, inside], np.int64)
        self._waiting: list[tuple[Array, Array]] = []
        self._waiting_rows = 0

    def add(self, scores: Array, is_inside: Array) -> None:
        """Count the scores of some rows."""
        bits = (scores.astype(np.float32) + np.float32(0)).view(np.uint32)  # -0 becomes 0
        keys = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))
        self._waiting.append((keys, is_inside))
        self._waiting_rows += len(keys)
        if self._waiting_rows > max(4096, len(self.keys)):
            self.merge()

    def merge(self) -> None:
        """Count what was added since the last time."""
        keys = np.concatenate([self.keys, *(keys for keys, _ in self._waiting)])
        ones = [np.stack([~inside, inside]).astype(np.int64) for _, inside in self._waiting]
        counts = np.concatenate([self.counts, *ones], axis=1)
        self._waiting, self._waiting_rows = [], 0
        while True:
            self.keys, places = np.unique(keys >> self.dropped << self.dropped, return_inverse=True)
            if len(self.keys) <= _MOST_SCORES:
                break
            self.dropped += 1
        self.counts = np.array([np.bincount(places, row, len(self.keys)) for row in counts]).astype(np.int64)

    def area(self) -> float:
        """Return the probability that a row inside has a larger score than one outside; equal scores count half."""
        self.merge()
        outside, inside = self.counts.astype(float)
        below = np.cumsum(outside) - outside
        pairs = outside.sum() * inside.sum()
        return float((inside * (below + outside / 2)).sum() / pairs) if pairs else math.nan

    def state(self) -> list[Any]:
        self.merge()
        return [self.dropped, self.keys.tolist(), *self.counts.tolist()]


class AUC(Metric):
    """The area under the receiver operating characteristic.

    It is the probability that a row of a class has a larger score for this class than a row of another one; equal scores
    count half. Of two classes, or a single logit, it is the value of class 1; of several, the mean over the classes that
    occur, each against all others, by the probabilities of the classes (softmax, unless the scores are probabilities).

    It is exact up to 65,536 different scores of a class. Beyond, scores are rounded so that there are no more, and equal
    ones count half.

    Parameters
    ----------
    name : str, default "auc"
        Its name.
    multilabel : bool, default False
        Whether a row may have several labels: targets of 0 and 1 in the shape of the scores. The value is the mean over the
        labels.
    ignore_index : int, default -100
        Targets of this value do not count.
    **kwargs
        As in `Metric`.
    """

    def __init__(
        self, name: str = "auc", *, multilabel: bool = False, ignore_index: int = -100, **kwargs: Any
    ) -> None:
        self.multilabel, self.ignore_index = multilabel, ignore_index
        super().__init__(name, **kwargs)

    def reset(self) -> None:
        """Forget all batches."""
        self._rankings: list[_Ranking] = []

    def state(self) -> dict[str, Any]:
        """Return the state that is needed to continue later, as plain numbers and lists."""
        return {"rankings": [ranking.state() for ranking in self._rankings]}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from the result of `state`."""
        self._rankings = [_Ranking(each) for each in state["rankings"]]

    def update(self, prediction: Array, target: Array, loss: float) -> None:
        """Take a batch: scores ``[batch, classes, ...]`` or ``[batch, ..., classes]``, and class indices ``[batch, ...]``."""
        if self.multilabel:
            scores, inside = prediction.reshape(len(prediction), -1), target.reshape(len(target), -1) > 0.5
            if scores.shape != inside.shape:
                raise ValueError(
                    f"auc: expected a target of 0 or 1 for each score, found {target.shape} for {prediction.shape}"
                )
        else:
            scores, inside = self._of_classes(prediction, target)
        while len(self._rankings) < scores.shape[1]:
            self._rankings.append(_Ranking())
        for number, ranking in enumerate(self._rankings):
            ranking.add(scores[:, number], inside[:, number])

    def _of_classes(self, prediction: Array, target: Array) -> tuple[Array, Array]:
        """Return a score for each row and class, or for class 1 of two, and which rows are of the class."""
        target = _as_classes(prediction, target)
        prediction = _with_classes_second(prediction, target)
        if prediction.ndim == 1 or prediction.shape[1] == 1:
            scores = prediction.reshape(-1, 1).astype(np.float64)
        else:
            scores = np.moveaxis(prediction, 1, -1).reshape(-1, prediction.shape[1]).astype(np.float64)
        classes = target.reshape(-1)
        if len(classes) != len(scores):
            raise ValueError(
                f"auc: expected one class index for each of {len(scores)} predictions, found {len(classes)} targets"
            )
        kept = classes != self.ignore_index
        scores, classes = scores[kept], classes[kept].astype(np.int64)
        if scores.shape[1] == 2:
            scores = scores[:, 1:] - scores[:, :1]
        if scores.shape[1] == 1:
            return scores, (classes > 0)[:, None]
        is_probability = (scores >= 0).all() and np.allclose(scores.sum(axis=1), 1, atol=1e-3)
        if not is_probability:
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            scores /= scores.sum(axis=1, keepdims=True)
        return scores, classes[:, None] == np.arange(scores.shape[1])

    def result(self) -> float:
        """Return the value, from 0 to 1; NaN without rows inside and outside of a class."""
        areas = [ranking.area() for ranking in self._rankings]
        known = [area for area in areas if not math.isnan(area)]
        return sum(known) / len(known) if known else math.nan


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


class R2(Metric):
    """The coefficient of determination, 1 - Σ (x - t)² / Σ (t - mean(t))²; of several numbers a row, their mean."""

    def __init__(self, name: str = "r2", **kwargs: Any) -> None:
        super().__init__(name, **kwargs)

    def reset(self) -> None:
        """Forget all batches."""
        self._count = 0
        self._mean = self._spread = self._error = np.zeros(0)

    def update(self, prediction: Array, target: Array, loss: float) -> None:
        """Take a batch of predictions and targets with the same number of elements."""
        if prediction.size != target.size:
            raise ValueError(
                f"r2: expected as many targets as predictions, found {target.shape} for {prediction.shape}"
            )
        if not len(prediction):
            return
        found = prediction.reshape(len(prediction), -1).astype(np.float64)
        wanted = target.reshape(found.shape).astype(np.float64)
        if not self._count:
            self._mean, self._spread, self._error = np.zeros((3, found.shape[1]))
        # Means and spreads of two parts make those of the whole without a difference of large sums (Chan et al., 1979).
        count, mean = len(wanted), wanted.mean(axis=0)
        total, apart = self._count + count, mean - self._mean
        self._spread = (
            self._spread + ((wanted - mean) ** 2).sum(axis=0) + apart**2 * (self._count * count / total)
        )
        self._mean = self._mean + apart * (count / total)
        self._error = self._error + ((found - wanted) ** 2).sum(axis=0)
        self._count = total

    def result(self) -> float:
        """Return the value, 1 at best; NaN with less than two rows. Of equal targets it is 1 without an error, else 0."""
        if self._count < 2:
            return math.nan
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(self._spread > 0, 1 - self._error / self._spread, self._error == 0)
        return float(shares.mean())


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
    "auc": AUC,
    "auc_multilabel": functools.partial(AUC, "auc_multilabel", multilabel=True),
    "iou": IoU,
    "confusion_matrix": ConfusionMatrix,
    "mae": MAE,
    "r2": R2,
    "perplexity": Perplexity,
}

METRIC_NAMES = tuple(_BY_NAME)
"""The names of metrics, besides ``top<k>``."""


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
