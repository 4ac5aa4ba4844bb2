"""A module whose frozen body is computed once for each sample.

Steps take samples, look up their features and run the trained layers on the features.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from ortrain._files.writing import write_file
from ortrain._ortrain import __version__
from ortrain.api import CheckpointState, Module
from ortrain.inference_session import InferenceSession
from ortrain.options import SessionOptions
from ortrain.trainer.feature_store import FeatureCache, FeatureStore, digests_of
from ortrain.trainer.frozen_body import NoBodyError, Split, split

Array = npt.NDArray[Any]

_log = logging.getLogger("ortrain.trainer")


@dataclass
class _Stage:
    """The body of the training model or of the eval model, and the features that it computed."""

    body: InferenceSession
    store: FeatureStore
    features: tuple[str, ...]
    inputs: list[str]
    """The data that the body reads."""
    by_rows: bool
    """Whether the features of a sample depend on the number of rows in its batch. Then the number is part of the key."""
    hits: int = 0
    misses: int = 0

    def compute(self, batch: Mapping[str, Array]) -> list[Array]:
        """Return the features of a batch."""
        found = self.body.run(list(self.features), {name: batch[name] for name in self.inputs})
        return [np.asarray(feature) for feature in found]

    def keys(self, batch: Mapping[str, Array]) -> list[bytes]:
        """Return the keys of the samples in a batch."""
        columns = [batch[name] for name in self.inputs]
        return digests_of(columns, len(columns[0]) if self.by_rows else 0)

    def of(self, batch: Mapping[str, Array]) -> list[Array]:
        """Return the features of a batch, stored or computed."""
        digests = self.keys(batch)
        rows = [self.store.get(digest) for digest in digests]
        known = [row for row in rows if row is not None]
        self.hits += len(known)
        self.misses += len(rows) - len(known)
        if len(known) == len(rows):
            return [np.stack(column) for column in zip(*known, strict=True)]
        computed = self.compute(batch)  # all rows: the session would compile a batch of another size
        for number, (digest, row) in enumerate(zip(digests, rows, strict=True)):
            if row is None:
                self.store.put(digest, [feature[number] for feature in computed])
        return computed


class CachedModule:
    """The module of a trainer during a run, in place of `Module`.

    Attributes
    ----------
    inner : Module
        The module of the trained layers, whose inputs are features.
    wanted : bool
        Whether storing features saves time. It does not if epochs have different samples.
    """

    def __init__(
        self,
        folder: Path,
        state: CheckpointState,
        parts: Mapping[bool, Split],
        cache: FeatureCache,
        names: Sequence[str],
        options: SessionOptions,
        body_options: SessionOptions,
        first_batch: int = 0,
    ) -> None:
        self.wanted = True
        # Epochs until the features of all samples are stored. That of a resumed run may begin in the middle.
        self._filling = 2 if first_batch else 1
        self._folder, self._state, self._names = folder, state, list(names)
        self._is_training = True
        self._stages = {training: _stage(part, cache, body_options) for training, part in parts.items()}
        with tempfile.TemporaryDirectory(prefix="ortrain-") as temporary:
            paths = {training: Path(temporary) / f"{training}.onnx" for training in parts}
            for training, part in parts.items():
                write_file(paths[training], "model", part.rest.SerializeToString())
            self.inner = Module(paths[True], state, paths.get(False), session_options=options)
        self._inputs = {training: self.inner.train(training).input_names() for training in parts}
        self.inner.train()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def train(self, mode: bool = True) -> CachedModule:
        """Switch to train steps, or to eval steps."""
        self.inner.train(mode)
        self._is_training = mode
        return self

    def eval(self) -> CachedModule:
        """Switch to eval steps."""
        return self.train(False)

    def __call__(self, *batch: Array) -> Any:
        """Take a step on samples."""
        given = dict(zip(self._names, batch, strict=True))
        stage = self._stages[self._is_training]
        given |= dict(zip(stage.features, stage.of(given), strict=True))
        return self.inner(*(given[name] for name in self._inputs[self._is_training]))

    def check(self, batch: Sequence[Array], last: int, expected: Sequence[Array] | None) -> None:
        """Check that stored features give the same bits as steps on samples.

        Parameters
        ----------
        batch : sequence of array
            The first batch of the run.
        last : int
            The rows of the last batch of an epoch.
        expected : sequence of array, optional
            What the eval model returns for the first batch.

        Raises
        ------
        NoBodyError
            When features are not one for each sample, depend on the other rows of a batch, or give other results.
        """
        given = dict(zip(self._names, batch, strict=True))
        for training, stage in self._stages.items():
            features = stage.compute(given)
            fewer = stage.compute({name: array[:last] for name, array in given.items()})
            for name, whole, part in zip(stage.features, features, fewer, strict=True):
                if whole.ndim == 0 or len(whole) != len(batch[0]) or part.shape != (last, *whole.shape[1:]):
                    raise NoBodyError(f"the value {name!r} does not have a row for each sample")
            reversed_rows = stage.compute({name: array[::-1] for name, array in given.items()})
            if _bits(features) != _bits(feature[::-1] for feature in reversed_rows):
                raise NoBodyError(f"{', '.join(stage.features)} of a sample depend on its place in the batch")
            # The batches of a validation are the same in every epoch.
            stage.by_rows = not training or _bits(fewer) != _bits(feature[:last] for feature in features)
            stage.store.open(features)
            for number, key in enumerate(stage.keys(given)):
                kept = stage.store.get(key)
                if kept is not None and _bits(kept) != _bits(feature[number] for feature in features):
                    _log.warning(
                        "features: the file was written on another machine; features are computed again"
                    )
                    stage.store.clear()
                    stage.store.open(features)
                    break
        if expected is not None:
            found = self.eval()(*batch)
            self.train()
            if _bits(found if isinstance(found, (tuple, list)) else [found]) != _bits(expected):
                raise NoBodyError("an eval step on stored features gives different bits")

    def end_epoch(self, epoch: int) -> None:
        """Stop using features if epochs have different samples; report once if there is no room for more features."""
        stage = self._stages[True]
        self._filling -= 1
        if self._filling == 0:
            _log.info(
                "features: stored for %d samples, %.1f MB; later epochs run only the trained layers",
                len(stage.store), stage.store.bytes / 1e6,
            )  # fmt: skip
        elif self._filling < 0 and stage.misses > stage.hits and not stage.store.is_full:
            self.wanted = False
            _log.warning(
                "features: %d of %d samples of epoch %d were not in the epochs before, as with augmentation; from now on the "
                "whole model runs in every step",
                stage.misses, stage.misses + stage.hits, epoch + 1,
            )  # fmt: skip
        if stage.store.failure is not None and self._filling == 0:
            _log.warning(
                "features: the file of features cannot grow (%s) and has room for %d samples; the others are computed in every "
                "epoch",
                stage.store.failure, len(stage.store),
            )  # fmt: skip
        elif stage.store.is_full and self._filling == 0:
            _log.warning(
                "features: the limit of %.0f MB has room for %d samples; the others are computed in every epoch. "
                "FeatureCache(limit=...) raises it",
                stage.store.bytes / 1e6, len(stage.store),
            )  # fmt: skip
        stage.hits = stage.misses = 0

    def export_model_for_inferencing(self, path: Any, names: Sequence[str]) -> None:
        """Write the whole model with the current parameters."""
        with tempfile.TemporaryDirectory(prefix="ortrain-") as temporary:
            file = Path(temporary) / "checkpoint"
            CheckpointState.save_checkpoint(self._state, file)
            state = CheckpointState.load_checkpoint(file)
        module = Module(self._folder / "training_model.onnx", state, self._folder / "eval_model.onnx")
        module.export_model_for_inferencing(path, list(names))

    def close(self) -> None:
        """Release the session and the files."""
        for stage in self._stages.values():
            stage.store.close()
        del self.inner


def _bits(arrays: Iterable[Any]) -> list[bytes]:
    return [np.ascontiguousarray(array).tobytes() for array in arrays]


def _stage(part: Split, cache: FeatureCache, options: SessionOptions) -> _Stage:
    content = part.body.SerializeToString()
    digest = hashlib.blake2b(content + __version__.encode(), digest_size=16).hexdigest()
    body = InferenceSession(content, options)
    inputs = [argument.name for argument in body.get_inputs()]
    return _Stage(body, FeatureStore(cache, digest), part.features, inputs, by_rows=True)


def parts_of(folder: Path, state: CheckpointState, names: Sequence[str]) -> dict[bool, Split]:
    """Return the training model and the eval model of a folder in two parts each.

    Parameters
    ----------
    folder : Path
        The folder of artifacts.
    state : CheckpointState
        The parameters, of which the frozen ones become constants of the body.
    names : sequence of str
        The inputs of a step, the target last.

    Raises
    ------
    NoBodyError
        When most of the model depends on what is trained.
    """
    paths = {True: folder / "training_model.onnx", False: folder / "eval_model.onnx"}
    if not paths[True].exists():
        raise NoBodyError(f"the artifacts are no longer in {folder}")
    models = {training: onnx.load(path) for training, path in paths.items() if path.exists()}
    updated = {
        name
        for node in models[True].graph.node
        if node.op_type == "BatchNormalization" and len(node.output) > 1
        for name in node.input[3:5]
    }
    fixed = {name: p.data for name, p in state.parameters if not p.requires_grad and name not in updated}
    parts = {training: split(model, names[:-1], fixed) for training, model in models.items()}
    if False in parts and not {v.name for v in parts[False].rest.graph.input} <= {
        v.name for v in parts[True].rest.graph.input
    }:
        raise NoBodyError("its eval model has other features than its training model")
    return parts
