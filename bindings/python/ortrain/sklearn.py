"""Estimators for scikit-learn that train an ONNX model: :class:`ONNXClassifier` and :class:`ONNXRegressor`.

Needs scikit-learn and onnx: ``pip install 'ortrain[sklearn]'``.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain._files.writing import write_file
from ortrain._support.counts import counted
from ortrain.models import mlp
from ortrain.trainer import Callback, EarlyStopping, Trainer
from ortrain.trainer.creation import make_artifacts

try:
    import onnx
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state, column_or_1d
    from sklearn.utils.class_weight import compute_sample_weight
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "ortrain.sklearn needs onnx and scikit-learn 1.6 or newer: pip install 'ortrain[sklearn]'"
    ) from error

__all__ = ["ONNXClassifier", "ONNXRegressor"]

Array = npt.NDArray[Any]


class _ONNXEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """The base of both estimators."""

    _loss = ""

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | onnx.ModelProto | None = None,
        *,
        hidden_layer_sizes: Sequence[int] = (100,),
        optimizer: str = "adamw",
        learning_rate: float = 3e-3,
        schedule: str | None = None,
        batch_size: int = 32,
        epochs: int = 100,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.model = model
        self.hidden_layer_sizes = hidden_layer_sizes
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.schedule = schedule
        self.batch_size = batch_size
        self.epochs = epochs
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    # ---- the trainer ----

    def _start(self, outputs: int, weighted: bool) -> None:
        """Create artifacts and the trainer for a model with the given number of outputs."""
        self._weighted = weighted
        self._seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        self._calls = 0
        model = self.model
        if model is None:
            model = mlp(self.n_features_in_, outputs, self.hidden_layer_sizes, seed=self._seed)
        elif isinstance(model, bytes):
            model = onnx.load_from_string(model)
        with tempfile.TemporaryDirectory(prefix="ortrain-") as name:
            folder = Path(name)
            make_artifacts(
                model, self._loss, self.optimizer, folder, None, None, batch="dynamic", weighted=weighted
            )
            self._artifacts = {file.name: file.read_bytes() for file in folder.iterdir()}
            self._open(folder)

    def _open(self, folder: Path) -> None:
        threads = 1 if self.n_jobs is None else max(0, self.n_jobs)  # 0 means all processors, as -1 does here
        self.trainer_ = Trainer(
            folder, learning_rate=self.learning_rate, schedule=self.schedule, seed=self._seed, threads=threads
        )
        arguments, features = self.trainer_.module.get_inputs(), self.trainer_.inputs.features
        if len(features) != 1:
            raise ValueError(f"model: expected one input, found {', '.join(features)}")
        self._row_shape = tuple(arguments[0].shape[1:])
        self._target_rank = len(arguments[-1].shape)

    def _rows(self, X: Array) -> Array:
        """Return rows of features in the shape of the model's input."""
        shape = self._row_shape
        if X.ndim > 2:
            return X  # the trainer checks the shape
        sizes = [dim for dim in shape if isinstance(dim, int)]
        if len(sizes) != len(shape) or shape == X.shape[1:]:
            return X
        if math.prod(sizes) != X.shape[1]:
            raise ValueError(
                f"model: its input has rows of shape {list(shape)}, found X with {counted(X.shape[1], 'feature')}"
            )
        return X.reshape(-1, *sizes)

    def _train(self, X: Array, target: Array, epochs: int, weights: Array | None) -> None:
        """Train on the rows, in a different order in each call."""
        order = np.random.default_rng([self._seed, self._calls]).permutation(len(X))
        self._calls += 1
        stops = self.early_stopping and epochs > 1
        callbacks: list[Callback] = []
        if stops:
            callbacks = [EarlyStopping(patience=self.n_iter_no_change, restore_best_weights=True)]
        history = self.trainer_.fit(
            (self._rows(X)[order], target[order]),
            epochs,
            sample_weight=None if weights is None else weights[order],
            validation=float(self.validation_fraction) if stops else None,
            batch_size=self.batch_size,
            callbacks=callbacks,
            verbose=self.verbose,
        )
        self.loss_curve_ = [*getattr(self, "loss_curve_", []), *history["loss"]]
        self.n_iter_ = len(self.loss_curve_)

    def _accept_weights(self, weights: Array | None) -> Array | None:
        """Return weights for the trainer, which the first call has created with or without them; rows without a weight get 1."""
        if weights is not None and not self._weighted:
            raise ValueError(
                "sample_weight: expected none, because the first call of partial_fit had none; pass weights of 1 in that call"
            )
        return weights

    @property
    def _allow_nd(self) -> bool:
        """Whether rows may have several dimensions: only for a given model, whose input has these dimensions."""
        return self.model is not None

    def _predicted(self, X: Any) -> Array:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=[np.float32, np.float64], allow_nd=self._allow_nd)
        found = self.trainer_.predict((self._rows(X),), batch_size=256)
        return np.asarray(found[0] if isinstance(found, tuple) else found)

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the trained model for inference.

        Parameters
        ----------
        path : str or os.PathLike
            The file.
        """
        check_is_fitted(self)
        self.trainer_.export(path)

    # ---- pickling: the state contains the bytes of the trainer's files ----

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        trainer = state.pop("trainer_", None)
        if trainer is not None:
            with tempfile.TemporaryDirectory() as folder:
                trainer.save(Path(folder) / "checkpoint")
                state["_checkpoint"] = (Path(folder) / "checkpoint").read_bytes()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        checkpoint = state.pop("_checkpoint", None)
        super().__setstate__(state)
        if checkpoint is not None:
            with tempfile.TemporaryDirectory() as folder:
                for name, content in {**self._artifacts, "checkpoint": checkpoint}.items():
                    write_file(Path(folder) / name, "stored model", content)
                self._open(Path(folder))

    def _forget(self) -> None:
        for name in ("trainer_", "loss_curve_", "n_iter_"):
            self.__dict__.pop(name, None)


class ONNXClassifier(ClassifierMixin, _ONNXEstimator):  # type: ignore[misc]
    """A classifier that trains an ONNX model with cross entropy.

    Parameters
    ----------
    model : str or os.PathLike or bytes or onnx.ModelProto, optional
        An inference model with one input and scores before the softmax, ``[batch, classes]``, as its first output. Rows
        of features get the shape of its input. By default a multilayer perceptron is made.
    hidden_layer_sizes : sequence of int, default (100,)
        Sizes of the hidden layers of the default model.
    optimizer : {"adamw", "sgd"}, default "adamw"
        The optimizer.
    learning_rate : float, default 0.003
        Its learning rate.
    schedule : {"constant", "linear", "cosine"}, optional
        How the rate changes over the steps of `fit`.
    batch_size : int, default 32
        Rows of a step.
    epochs : int, default 100
        Passes over the data in `fit`; `partial_fit` makes one.
    early_stopping : bool, default False
        Whether `fit` holds out rows and ends when the loss on them has stopped improving. The weights of the best epoch are
        then kept.
    validation_fraction : float, default 0.1
        The share of the rows that is held out for that.
    n_iter_no_change : int, default 10
        Epochs without an improvement after which `fit` ends.
    class_weight : dict or "balanced", optional
        A weight for each class, or weights that make all classes count the same. They multiply the weights of rows.
    random_state : int, RandomState or None, default None
        Source of the random weights of the default model and of the order of the rows.
    n_jobs : int, optional
        Threads of a step: 1 by default, -1 for one per processor.
    verbose : bool, default False
        Whether progress is shown.

    Attributes
    ----------
    classes_ : array
        The classes, in the order of the model's scores.
    trainer_ : ortrain.Trainer
        The trainer of the model.
    loss_curve_ : list of float
        The mean loss of each epoch.
    n_iter_ : int
        The number of epochs.
    n_features_in_ : int
        The number of features.
    """

    _loss = "cross_entropy"

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | onnx.ModelProto | None = None,
        *,
        hidden_layer_sizes: Sequence[int] = (100,),
        optimizer: str = "adamw",
        learning_rate: float = 3e-3,
        schedule: str | None = None,
        batch_size: int = 32,
        epochs: int = 100,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        class_weight: dict[Any, float] | str | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            model,
            hidden_layer_sizes=hidden_layer_sizes,
            optimizer=optimizer,
            learning_rate=learning_rate,
            schedule=schedule,
            batch_size=batch_size,
            epochs=epochs,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            random_state=random_state,
            n_jobs=n_jobs,
            verbose=verbose,
        )
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> ONNXClassifier:
        """Train the model from its initial weights.

        Parameters
        ----------
        X : array of shape (rows, features) or (rows, ...)
            The rows; with a model of your own also images or other arrays, in the shape of its input.
        y : array of shape (rows,)
            Their classes.
        sample_weight : array of shape (rows,), optional
            Their weights. The loss of a batch is the weighted mean of the losses of its rows.

        Returns
        -------
        ONNXClassifier
            The estimator.
        """
        X, y = self._checked(X, y, reset=True)
        weights = self._weights(X, y, sample_weight)
        self._begin(np.unique(y), X, weights is not None)
        self._train(X, self._indices(y), self.epochs, weights)
        return self

    def _weights(self, X: Array, y: Array, sample_weight: Any) -> Array | None:
        """Return the weights of rows; None if there are none."""
        if sample_weight is None and self.class_weight is None:
            return None
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        return np.asarray(weights * compute_sample_weight(self.class_weight, y))

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> ONNXClassifier:
        """Train for one more epoch on rows that may be new.

        Parameters
        ----------
        X, y
            As in `fit`.
        classes : array, optional
            All classes there will be; needed in the first call.
        sample_weight : array of shape (rows,), optional
            As in `fit`; if later calls have it, the first call must have it too.

        Returns
        -------
        ONNXClassifier
            The estimator.
        """
        first = not hasattr(self, "trainer_")
        X, y = self._checked(X, y, reset=first)
        weights = self._weights(X, y, sample_weight)
        if first:
            if classes is None:
                raise ValueError("classes: expected all classes in the first call of partial_fit, found none")
            self._begin(np.unique(classes), X, weights is not None)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(f"classes: expected those of the first call, {self.classes_}, found {classes}")
        self._train(X, self._indices(y), 1, self._accept_weights(weights))
        return self

    def _checked(self, X: Any, y: Any, reset: bool) -> tuple[Array, Array]:
        X, y = validate_data(self, X, y, reset=reset, dtype=[np.float32, np.float64], allow_nd=self._allow_nd)
        check_classification_targets(y)
        return X, column_or_1d(y, warn=True)

    def _begin(self, classes: Array, X: Array, weighted: bool) -> None:
        self._forget()
        self.classes_ = classes
        self._start(len(classes), weighted)
        scores = self.trainer_.predict((self._rows(np.zeros_like(X[:1])),))
        shape = np.shape(scores[0] if isinstance(scores, tuple) else scores)
        if shape != (1, len(classes)):
            del self.trainer_
            raise ValueError(
                f"model: expected scores of shape [batch, {len(classes)}] for {counted(len(classes), 'class')}, "
                f"found {list(shape)} for one row"
            )

    def _indices(self, y: Array) -> Array:
        found = np.searchsorted(self.classes_, y)
        found = np.minimum(found, len(self.classes_) - 1)
        unknown = self.classes_[found] != y
        if unknown.any():
            raise ValueError(f"y: expected the classes {self.classes_}, found {np.unique(y[unknown])}")
        return found.astype(np.int64)

    def decision_function(self, X: Any) -> Array:
        """Return the scores of the classes, before the softmax.

        Parameters
        ----------
        X : array of shape (rows, features) or (rows, ...)
            The rows.

        Returns
        -------
        array of float32, shape (rows, classes) or (rows,)
            In the order of ``classes_``. For two classes, the score of the second minus that of the first.
        """
        scores = self._predicted(X)
        return np.asarray(scores[:, 1] - scores[:, 0]) if len(self.classes_) == 2 else scores

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class.

        Parameters
        ----------
        X : array of shape (rows, features)
            The rows.

        Returns
        -------
        array of float32, shape (rows, classes)
            The softmax of the scores, in the order of ``classes_``.
        """
        scores = self._predicted(X)
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(scores / scores.sum(axis=1, keepdims=True))

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each row.

        Parameters
        ----------
        X : array of shape (rows, features)
            The rows.

        Returns
        -------
        array of shape (rows,)
            The classes.
        """
        chosen = self._predicted(X).argmax(axis=1)
        return np.asarray(self.classes_[chosen])


class ONNXRegressor(RegressorMixin, _ONNXEstimator):  # type: ignore[misc]
    """A regressor that trains an ONNX model with the mean squared error.

    Parameters
    ----------
    model : str or os.PathLike or bytes or onnx.ModelProto, optional
        An inference model with one input whose first output is the prediction, ``[batch]`` or ``[batch, targets]``. By
        default a multilayer perceptron is made.
    hidden_layer_sizes, optimizer, learning_rate, schedule, batch_size, epochs
        As in `ONNXClassifier`.
    early_stopping, validation_fraction, n_iter_no_change, random_state, n_jobs, verbose
        As in `ONNXClassifier`.

    Attributes
    ----------
    trainer_, loss_curve_, n_iter_, n_features_in_
        As in `ONNXClassifier`.
    """

    _loss = "mse"

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> ONNXRegressor:
        """Train the model from its initial weights.

        Parameters
        ----------
        X : array of shape (rows, features)
            The rows.
        y : array of shape (rows,) or (rows, targets)
            Their targets.
        sample_weight : array of shape (rows,), optional
            Their weights. The loss of a batch is the weighted mean of the losses of its rows.

        Returns
        -------
        ONNXRegressor
            The estimator.
        """
        X, y = self._checked(X, y, reset=True)
        weights = self._weights(X, sample_weight)
        self._forget()
        self._start(1 if y.ndim == 1 else y.shape[1], weights is not None)
        self._train(X, self._shaped(y), self.epochs, weights)
        return self

    def _weights(self, X: Array, sample_weight: Any) -> Array | None:
        """Return the weights of rows; None if there are none."""
        if sample_weight is None:
            return None
        return np.asarray(_check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True))

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> ONNXRegressor:
        """Train for one more epoch on rows that may be new.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`; if later calls have weights, the first call must have them too.

        Returns
        -------
        ONNXRegressor
            The estimator.
        """
        first = not hasattr(self, "trainer_")
        X, y = self._checked(X, y, reset=first)
        weights = self._weights(X, sample_weight)
        if first:
            self._start(1 if y.ndim == 1 else y.shape[1], weights is not None)
        self._train(X, self._shaped(y), 1, self._accept_weights(weights))
        return self

    def _checked(self, X: Any, y: Any, reset: bool) -> tuple[Array, Array]:
        X, y = validate_data(
            self,
            X,
            y,
            reset=reset,
            dtype=[np.float32, np.float64],
            multi_output=True,
            y_numeric=True,
            allow_nd=self._allow_nd,
        )
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        return X, y.astype(np.float32)

    def _shaped(self, y: Array) -> Array:
        self._flat = y.ndim == 1
        return y.reshape(-1, 1) if y.ndim == 1 and self._target_rank == 2 else y

    def predict(self, X: Any) -> Array:
        """Return the predictions.

        Parameters
        ----------
        X : array of shape (rows, features)
            The rows.

        Returns
        -------
        array of float32, shape (rows,) or (rows, targets)
            As ``y`` in `fit`.
        """
        found = self._predicted(X)
        return found.reshape(len(found)) if self._flat else found
