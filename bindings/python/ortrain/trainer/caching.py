"""Keeping the features of a frozen body during a run, if the results are the same bit by bit."""

from __future__ import annotations

import importlib.util
import logging
import weakref
from typing import Any, cast

from ortrain.api import Module, Optimizer
from ortrain.errors import OrtrainError
from ortrain.trainer.augmenting import Augmented
from ortrain.trainer.data import Rows, Source
from ortrain.trainer.feature_store import FeatureCache
from ortrain.trainer.loop import Loop
from ortrain.trainer.opening import options_of, sessions_of

_LARGEST = 2**30
"""The most bytes of frozen weights in a model that is searched for a frozen body."""

_log = logging.getLogger("ortrain.trainer")


class Caching(Loop):
    """A run in which the frozen body of a model is computed once for each sample."""

    _feature_cache: FeatureCache | None = None
    _cached: Any = None

    def _keep_features(self, source: Source, first_batch: int) -> None:
        """Replace the module by one that keeps features, unless that saves too little or changes results."""
        cache = self._feature_cache
        remaining = self.epochs - self.epoch
        if cache is None or remaining < 1 or (remaining < 2 and cache.folder is None):
            return
        if importlib.util.find_spec("onnx") is None:
            _log.info(
                "features: not kept, because cutting the model needs onnx: pip install 'ortrain[artifacts]'"
            )
            return
        size = (self.folder / "training_model.onnx").stat().st_size if self.folder.exists() else 0
        trained = 4 * self.module.get_parameters_size(True)
        if not trained <= size + 4 * self.module.get_parameters_size(False) - trained <= _LARGEST:
            return  # most weights are trained, or the model is too large to be loaded a second time
        from ortrain.trainer.cached_module import CachedModule, parts_of
        from ortrain.trainer.frozen_body import NoBodyError

        try:
            parts = parts_of(self.folder, self.state, self.inputs.names)
            if isinstance(source, Augmented):
                _log.warning(
                    "features of the frozen body are not kept, because augmentation changes the pictures in every epoch: each "
                    "step runs the whole model"
                )
                return
            if not isinstance(source, Rows):
                raise NoBodyError(
                    "the data are batches, which may differ in every epoch, as with augmentation"
                )
        except NoBodyError as reason:
            _log.info("features: not kept: %s", reason)
            return
        batch = source.example(self.epoch, first_batch)
        expected = None
        if False in parts:
            try:
                found = self.module.eval()(*batch)
            except OrtrainError as error:
                self._explain(error, batch, source.columns)
                raise
            finally:
                self.module.train()
            expected = list(found) if isinstance(found, (tuple, list)) else [found]
        rate = self.optimizer.get_learning_rate()
        if not self._let_go():
            _log.info("features: not kept, because the program holds the trainer's module")
            return
        options = options_of(self._threads, self._config, self._runs)
        body_options = options_of(self._threads, {"session.set_denormal_as_zero": "1", **self._config}, 0)
        module = None
        try:
            module = CachedModule(
                self.folder,
                self.state,
                parts,
                cache,
                self.inputs.names,
                options,
                body_options,
                first_batch,
            )
            module.check(batch, source.last_rows, expected)
        except (NoBodyError, OrtrainError) as reason:
            _log.warning("features: not kept: %s", reason)
            if module is not None:
                module.close()
            self._reopen(rate)
            return
        self._cached = module
        self.module = cast(Module, module)
        self.optimizer = Optimizer(self.folder / "optimizer_model.onnx", module.inner)
        self.optimizer.set_learning_rate(rate)

    def _let_go(self) -> bool:
        """Drop module and optimizer, so that another session can use the state; return whether they had no other owner."""
        kept_module, kept_optimizer = weakref.ref(self.module), weakref.ref(self.optimizer)
        del self.module, self.optimizer
        module = kept_module()
        if module is None:
            return True
        self.module = module
        optimizer = kept_optimizer()
        if optimizer is None:  # the old session still has an optimizer, and a session takes no second one
            optimizer = Optimizer.__new__(Optimizer)
            optimizer._owner = module
        self.optimizer = optimizer
        return False

    def _reopen(self, rate: float) -> None:
        """Create the sessions of the whole model."""
        options = options_of(self._threads, self._config, self._runs)
        self.module, self.optimizer = sessions_of(self.folder, self.state, options)
        self.optimizer.set_learning_rate(rate)

    def _features_of_epoch(self) -> None:
        """Decide after an epoch whether the next epoch uses features."""
        if self._cached is not None:
            self._cached.end_epoch(self.epoch - 1)
            if not self._cached.wanted:
                self._drop_features()

    def _drop_features(self) -> None:
        """Return to the module of the whole model."""
        if self._cached is None:
            return
        rate = self.optimizer.get_learning_rate()
        self._cached.close()
        self._cached = None
        del self.module, self.optimizer
        self._reopen(rate)
