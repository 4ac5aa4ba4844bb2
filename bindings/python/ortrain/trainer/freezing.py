"""Freezing by a schedule: parameters that are not trained in some epochs."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

from ortrain.trainer.callbacks import Callback, Logs


class FreezeGroups(Callback):
    """Freezes parameter groups in some epochs, by the factor 0 for their learning rate.

    A frozen group keeps its values bitwise, also under weight decay. Its gradients are computed, and the optimizer's moments
    follow them; to save their time as well, make artifacts in which the parameters are frozen (``frozen_params``). A checkpoint
    that is saved within a frozen epoch has the factor 0: resume it, or set the factor of the group.

    Parameters
    ----------
    epochs : mapping of str to container of int or callable
        For each group, by its name in ``param_groups`` of the trainer, the epochs in which it is frozen, from 0, such as
        ``range(5)``; or a function of the epoch that returns whether it is.

    Raises
    ------
    ValueError
        When there is no group, or, when a run begins, the optimizer has no group of that name.
    """

    def __init__(self, epochs: Mapping[str, Container[int] | Callable[[int], bool]]) -> None:
        if not epochs:
            raise ValueError("FreezeGroups: expected a group with its epochs, found none")
        self.epochs = dict(epochs)
        self._factors: dict[str, float] = {}

    def on_train_begin(self, logs: Logs) -> None:
        """Note the factors of the groups, and freeze those of the first epoch."""
        groups = self.trainer.optimizer.param_groups
        for name in self.epochs:
            if name not in groups:
                raise ValueError(
                    f"FreezeGroups: the optimizer has no parameter group {name!r}; it has {', '.join(key for key, _ in groups)}. "
                    "param_groups of Trainer or of an optimizer block makes them"
                )
        now = {name: groups[name].learning_rate_factor for name in self.epochs}
        # A checkpoint that was saved in a frozen epoch has the factor 0.
        self._factors = {**now, **{name: self._factors[name] for name in now if name in self._factors}}
        self._freeze(self.trainer.epoch)

    def on_epoch_begin(self, epoch: int, logs: Logs) -> None:
        """Freeze the groups of an epoch."""
        self._freeze(epoch)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Give the groups their factors, which a checkpoint of the epoch then has."""
        self._thaw()

    def on_train_end(self, logs: Logs) -> None:
        """Give the groups their factors."""
        self._thaw()
        self._factors = {}

    def state(self) -> dict[str, Any]:
        """Return the factors, for a checkpoint."""
        return {"factors": dict(self._factors)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over the factors of a checkpoint."""
        self._factors = dict(state["factors"])

    def _thaw(self) -> None:
        for name, factor in self._factors.items():
            self.trainer.optimizer.param_groups[name].learning_rate_factor = factor

    def _freeze(self, epoch: int) -> None:
        for name, when in self.epochs.items():
            is_frozen = when(epoch) if callable(when) else epoch in when
            group = self.trainer.optimizer.param_groups[name]
            group.learning_rate_factor = 0.0 if is_frozen else self._factors[name]
