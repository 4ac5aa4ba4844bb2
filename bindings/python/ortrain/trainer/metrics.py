"""Streaming metrics: each takes batches one by one and gives its value at any time."""

from __future__ import annotations

import base64
import inspect
import json
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain import _ortrain
from ortrain._support.counts import counted
from ortrain._support.values import to_value

Array = npt.NDArray[Any]

_READS_PREDICTION: dict[str, bool] = {
    metric["name"]: metric["reads_prediction"] for metric in json.loads(_ortrain.list_metrics())
}

METRIC_NAMES = tuple(_READS_PREDICTION)
"""The names of the core's metrics, besides ``top<k>``."""


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
    """Whether the metric needs an output of the model besides the loss."""

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
            Expected values, ``[batch, ...]``.
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


_DEFAULT_K = 5  # of top_k
_TWO_CLASSES = ("accuracy", "auc", "auc_multilabel", "confusion_matrix", "f1", "iou")
"""The metrics for which a single score for each target tells two classes apart."""


def _check_two_classes(name: str, target: Array) -> None:
    """Reject numbers, such as prices, as the classes of a model with a single score for each target.

    Raises
    ------
    ValueError
        When a target is above 1.
    """
    if target.size and target.dtype.kind in "iuf" and (largest := target.max()) > 1:
        raise ValueError(
            f"metric {name}: the model has a single score for each target, for two classes: expected targets of 0 and 1, found "
            f"{largest:g}; mae and r2 are metrics of numbers"
        )


class CoreMetric(Metric):
    """A metric of the core, by its name; the page on metrics lists the names and options.

    Parameters
    ----------
    metric : str
        The core's name of the metric, such as ``accuracy`` or ``top5``.
    options : dict, optional
        Its options by name.
    name : str, optional
        Its name in logs; that of the core by default.
    **kwargs
        As in `Metric`.
    """

    def __init__(
        self, metric: str, options: dict[str, Any] | None = None, name: str | None = None, **kwargs: Any
    ) -> None:
        self._metric = metric
        k = (options or {}).get("k", _DEFAULT_K) if metric == "top_k" else metric.removeprefix("top")
        self.largest = int(k) if metric.startswith("top") and str(k).isdecimal() else None
        """How many of the largest scores count, of a top-k metric."""
        self.has_warned = False
        self._options = ",".join(f"{key}={value}" for key, value in (options or {}).items())
        super().__init__(name or metric, **kwargs)
        self.reads_prediction = _READS_PREDICTION.get(metric, True)

    def reset(self) -> None:
        """Forget all batches."""
        self._counts = _ortrain.create_metric(self._metric, self._options)

    def update(self, prediction: Array, target: Array, loss: float) -> None:
        """Take a batch: predictions ``[batch, ...]``, targets ``[batch, ...]``, and the loss."""
        if self._metric in _TWO_CLASSES and np.size(prediction) == np.size(target):
            _check_two_classes(self.name, np.asarray(target))
        if self.largest is not None and not self.has_warned:
            self._warn_of_few_classes(np.shape(prediction))
        values = (to_value(prediction), to_value(target), to_value(np.float64(loss)))
        _ortrain.metric_update(self._counts, *values)

    def _warn_of_few_classes(self, shape: tuple[int, ...]) -> None:
        """Warn of a k that is not below the number of classes, as scikit-learn's top_k_accuracy_score does."""
        if self.largest is None or len(shape) < 2 or self.largest < shape[1]:
            return
        self.has_warned = True
        warnings.warn(
            f"metric {self.name}: the model has {counted(shape[1], 'class')}, so each class is among the {self.largest} with the "
            "largest scores and the value is always 1",
            UserWarning,
            stacklevel=3,
        )

    def merge(self, other: CoreMetric) -> None:
        """Add the counts of another metric with the same name and options."""
        _ortrain.metric_merge(self._counts, other._counts)

    def result(self) -> Any:
        """Return the value over all batches, NaN without any: a float, or nested lists of numbers."""
        return _ortrain.metric_result(self._counts).numpy().tolist()

    def state(self) -> dict[str, Any]:
        """Return the state that is needed to continue later, as text of base 64."""
        return {"counts": base64.b64encode(_ortrain.metric_get_state(self._counts)).decode("ascii")}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from the result of `state`."""
        _ortrain.metric_set_state(self._counts, base64.b64decode(state["counts"]))


class Accuracy(CoreMetric):
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
        super().__init__("accuracy", {"ignore_index": ignore_index}, name, **kwargs)


class TopK(CoreMetric):
    """The share of rows whose class is among the k with the largest scores.

    Parameters
    ----------
    k : int, default 5
        How many classes count.
    name : str, optional
        Its name; ``top<k>`` by default.
    ignore_index : int, default -100
        Targets of this value do not count.
    **kwargs
        As in `Metric`.
    """

    def __init__(
        self, k: int = 5, name: str | None = None, *, ignore_index: int = -100, **kwargs: Any
    ) -> None:
        super().__init__("top_k", {"k": k, "ignore_index": ignore_index}, name or f"top{k}", **kwargs)


class ConfusionMatrix(CoreMetric):
    """How often each class was predicted for rows of each class: a row per true class, a column per predicted class.

    Parameters
    ----------
    name : str, default "confusion_matrix"
        Its name.
    ignore_index : int, default -100
        Targets of this value do not count.
    **kwargs
        As in `Metric`.
    """

    def __init__(self, name: str = "confusion_matrix", *, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__("confusion_matrix", {"ignore_index": ignore_index}, name, **kwargs)

    def result(self) -> Any:
        """Return the counts as nested lists."""
        return [[int(count) for count in row] for row in super().result()]


class F1(CoreMetric):
    """The harmonic mean of precision and recall, 2 TP / (2 TP + FP + FN).

    Parameters
    ----------
    average : {"macro", "micro", "binary"}, default "macro"
        The mean over the classes that occur; one value over all rows; or the value of class 1.
    name : str, default "f1"
        Its name.
    ignore_index : int, default -100
        Targets of this value do not count.
    **kwargs
        As in `Metric`.
    """

    def __init__(
        self, average: str = "macro", name: str = "f1", *, ignore_index: int = -100, **kwargs: Any
    ) -> None:
        super().__init__("f1", {"average": average, "ignore_index": ignore_index}, name, **kwargs)


class IoU(CoreMetric):
    """The mean over the classes that occur of intersection over union, TP / (TP + FP + FN).

    For pictures whose pixels have classes, the value is the mean overlap of predicted and true areas.

    Parameters
    ----------
    name : str, default "iou"
        Its name.
    ignore_index : int, default -100
        Targets of this value do not count.
    **kwargs
        As in `Metric`.
    """

    def __init__(self, name: str = "iou", *, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__("iou", {"ignore_index": ignore_index}, name, **kwargs)


class AUC(CoreMetric):
    """The area under the receiver operating characteristic.

    It is the probability that a row of a class has a larger score for this class than a row of another one; equal
    scores count half. For two classes, or a single logit, the value is that of class 1. For more classes, it is the
    mean over the classes that occur, each against all others, by the probabilities of the classes (softmax, unless the
    scores are probabilities).

    The value is exact for up to 65,536 different scores of a class. If there are more, scores are rounded to that many
    values, and equal scores count half.

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
        super().__init__("auc", {"multilabel": int(multilabel), "ignore_index": ignore_index}, name, **kwargs)


class MAE(CoreMetric):
    """The mean absolute error."""

    def __init__(self, name: str = "mae", **kwargs: Any) -> None:
        super().__init__("mae", name=name, **kwargs)


class R2(CoreMetric):
    """The coefficient of determination, 1 - Σ (x - t)² / Σ (t - mean(t))²; for several numbers per row, their mean.

    The best value is 1. With fewer than two rows, the value is NaN. If all targets are equal, the value is 1 for
    predictions without an error, else 0.
    """

    def __init__(self, name: str = "r2", **kwargs: Any) -> None:
        super().__init__("r2", name=name, **kwargs)


class Perplexity(CoreMetric):
    """The exponential of the mean cross entropy per target.

    The loss of the model must be the mean cross entropy of a batch.

    Parameters
    ----------
    name : str, default "perplexity"
        Its name.
    ignore_index : int, default -100
        Targets of this value do not count.
    **kwargs
        As in `Metric`.
    """

    def __init__(self, name: str = "perplexity", *, ignore_index: int = -100, **kwargs: Any) -> None:
        super().__init__("perplexity", {"ignore_index": ignore_index}, name, **kwargs)


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


def metric_of(given: str | Metric | Callable[[Array, Array], Any]) -> Metric:
    """Return a metric that was given as such, as a function, or by its name.

    Raises
    ------
    TypeError
        When it is neither, such as a metric of Keras.
    InvalidArgumentError
        When there is no metric of this name.
    """
    if isinstance(given, Metric):
        return given
    if inspect.isroutine(given):
        return FunctionMetric(given)
    if not isinstance(given, str):
        raise TypeError(
            f"metrics: expected names, functions or instances of ortrain.trainer.Metric, found {type(given).__name__}; known "
            f"are {', '.join(METRIC_NAMES)} and top<k>"
        )
    return ConfusionMatrix() if given == "confusion_matrix" else CoreMetric(given)
