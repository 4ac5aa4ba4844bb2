"""Learning rate schedules: the library's schedules by name, and functions of the program."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from ortrain import _ortrain
from ortrain.api import Optimizer

ScheduleFunction = Callable[[int, "int | None"], float]


@cache
def declared() -> dict[str, dict[str, Any]]:
    """Return the schedules of the library by name, as it declares them."""
    return {schedule["name"]: schedule for schedule in json.loads(_ortrain.list_schedules())}


class Schedule:
    """A learning rate schedule of the library, by name.

    Parameters
    ----------
    name : str
        Its name. The page on schedules lists all of them with their settings.
    warmup : int, default 0
        Optimizer steps before the schedule, in which the rate rises from 0.
    per_epoch : bool, default False
        Whether the schedule counts epochs instead of optimizer steps: the rate changes between epochs, and settings such as
        ``step_size`` are numbers of epochs.
    monitor : str, optional
        For ``on_plateau``: the value of an epoch that it follows. ``val_loss`` by default, or ``loss`` without validation.
    **settings : float or bool or list of float
        The settings of the schedule, such as ``gamma=0.5``. Those that are not given have their defaults.

    Raises
    ------
    ValueError
        When there is no such schedule, or a setting is missing.
    TypeError
        When there is no such setting.
    """

    def __init__(
        self,
        name: str,
        *,
        warmup: int = 0,
        per_epoch: bool = False,
        monitor: str | None = None,
        **settings: float | bool | Sequence[float],
    ) -> None:
        if name not in declared():
            raise ValueError(f"schedule: expected one of {', '.join(declared())}, found {name!r}")
        declaration = declared()[name]
        if warmup < 0:
            raise ValueError(f"warmup: expected 0 or more, found {warmup}")
        if monitor is not None and not declaration["reads_value"]:
            raise TypeError(f"monitor: the schedule {name} follows no value, found {monitor!r}")
        own = {"total_steps", "warmup_steps", "interval", "first_step"}  # the trainer sets these
        known = {s["name"]: s["default"] for s in declaration["settings"] if s["name"] not in own}
        for key in settings:
            if key not in known:
                raise TypeError(f"schedule {name}: expected settings among {', '.join(known)}, found {key}")
        missing = [key for key, default in known.items() if default is None and key not in settings]
        if missing:
            raise ValueError(f"schedule {name}: expected {' and '.join(missing)}, which has no default")
        self.name, self.warmup, self.per_epoch, self.monitor = name, warmup, per_epoch, monitor
        self.settings = settings
        self.needs_total: bool = declaration["needs_total"]
        self.reads_value: bool = declaration["reads_value"]

    def register(
        self, optimizer: Optimizer, rate: float, first_step: int, total: int | None, epoch: int | None
    ) -> None:
        """Register the schedule with an optimizer, for a number of steps in total and in an epoch, if these are known."""
        if self.needs_total and total is None:
            raise ValueError(
                f"schedule {self.name}: expected a known number of steps; give fit steps_per_epoch"
            )
        if self.per_epoch and epoch is None:
            raise ValueError(
                f"schedule {self.name} per epoch: expected a known number of steps; give fit steps_per_epoch"
            )
        given = {**self.settings, "warmup_steps": self.warmup, "first_step": first_step}
        if total is not None:
            given["total_steps"] = total
        if self.per_epoch and epoch is not None:
            given["interval"] = epoch
        text = " ".join(f"{key}={_text(value)}" for key, value in given.items())
        _ortrain.register_lr_scheduler(optimizer._handle, self.name, text, rate)

    @property
    def is_constant(self) -> bool:
        """Whether the rate never changes."""
        return self.name == "constant" and self.warmup == 0

    def as_json(self) -> dict[str, Any]:
        """Return what is not by default, as values that JSON can represent."""
        found: dict[str, Any] = {
            key: list(value) if isinstance(value, Sequence) else value for key, value in self.settings.items()
        }
        return {**found, **({"per_epoch": True} if self.per_epoch else {})}


def _text(value: float | bool | Sequence[float]) -> str:
    """Return a setting in the text form that the library reads."""
    if isinstance(value, Sequence):
        return ":".join(_text(number) for number in value)
    return repr(int(value) if isinstance(value, bool) or value == int(value) else float(value))


def schedule_of(
    given: str | Schedule | ScheduleFunction | None, warmup: int = 0
) -> Schedule | ScheduleFunction:
    """Return what a trainer follows: a schedule of the library, or a function of step and total.

    Raises
    ------
    ValueError
        When there is no schedule of this name, or the warmup is given twice.
    """
    if isinstance(given, Schedule):
        if warmup and given.warmup:
            raise ValueError("warmup: expected one for the trainer or for the schedule, found both")
        if warmup:
            return Schedule(
                given.name,
                warmup=warmup,
                per_epoch=given.per_epoch,
                monitor=given.monitor,
                **given.settings,
            )
        return given
    if callable(given):
        return given
    return Schedule("constant" if given is None else given, warmup=warmup)
