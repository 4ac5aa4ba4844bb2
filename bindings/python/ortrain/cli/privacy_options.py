"""Options of `ortrain train` for differential privacy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from ortrain.cli.numbers import Number
from ortrain.preprocessing.augmentation import augmentation_of
from ortrain.trainer import Privacy, Trainer, schedules
from ortrain.trainer.mezo import NAME

_OPTIONS = [
    click.option(
        "--private/--no-private",
        default=None,
        help="train with differential privacy of the rows (DP-SGD): the gradient of each row is clipped, and noise is "
        "added; --no-private continues from private parameters without noise, which ends their privacy",
    ),
    click.option(
        "--epsilon",
        type=Number(min=0, min_open=True),
        help="train privately, with so much noise that all runs together do not exceed this epsilon",
    ),
    click.option(
        "--noise-multiplier",
        type=Number(min=0),
        help="train privately, with noise of this standard deviation, as a multiple of the clipping norm (default 1 "
        "without --epsilon)",
    ),
    click.option(
        "--delta",
        type=Number(min=0, max=1, min_open=True, max_open=True),
        help="in a private run, the probability with which the guarantee of epsilon may fail (default 1e-5)",
    ),
    click.option(
        "--clip-per-sample",
        type=Number(min=0, min_open=True),
        metavar="NORM",
        help="in a private run, the norm to which the gradient of each row is clipped (default 1)",
    ),
]


@dataclass(frozen=True)
class PrivacyOptions:
    """The privacy that a user wants. An option that was not given is None."""

    private: bool | None = None
    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    clip_per_sample: float | None = None

    def __post_init__(self) -> None:
        if self.private is False and self._given:
            raise click.UsageError(f"--no-private and {self._given[0]}: expected one of them")
        if self.epsilon is not None and self.noise_multiplier is not None:
            raise click.UsageError(
                "--epsilon and --noise-multiplier: expected one of them, because the noise follows from epsilon"
            )

    @property
    def _given(self) -> list[str]:
        """Return the numeric options that are given, in the form in which a user types them."""
        numbers = {each.name: getattr(self, each.name) for each in fields(self)[1:]}
        return [
            f"--{name.replace('_', '-')} {value:g}" for name, value in numbers.items() if value is not None
        ]

    @property
    def is_wanted(self) -> bool:
        """Whether steps are private."""
        return bool(self.private or self._given)

    @property
    def is_noisy(self) -> bool:
        """Whether steps are private and have noise."""
        return self.is_wanted and self.noise_multiplier != 0

    @property
    def chosen(self) -> Privacy | bool | None:
        """The argument ``privacy`` of a trainer."""
        if not self.is_wanted:
            return self.private
        clip = Privacy.clip if self.clip_per_sample is None else self.clip_per_sample
        delta = Privacy.delta if self.delta is None else self.delta
        return Privacy(self.noise_multiplier, self.epsilon, clip, delta)

    def check(self, options: Mapping[str, Any]) -> None:
        """Reject other options of the command, by their parameters, that private steps rule out."""
        if not self.is_wanted:
            return
        named = self._given[0] if self._given else "--private"
        changes, monitor = augmentation_of(options["augment"]), options["monitor"]
        validated, schedule = options["validation"] is not None, options["schedule"]
        follows = schedules.declared()[schedule]["reads_value"]
        alone = "without --validation it follows the loss of the training rows, which has no noise"
        problems = {
            f"--accumulate {options['accumulate']}": options["accumulate"] > 1
            and "a private step divides its batch into parts itself; a larger --batch needs no more memory",
            f"--augment {options['augment']}": bool(changes and changes.mixes)
            and "mixup and cutmix make a row of two rows of the data",
            "--no-shuffle": not options["shuffle"] and "each step draws its rows at random",
            "--sample-weight": options["weight"] is not None
            and "the weighted mean of a single row does not depend on its weight",
            "--optimizer mezo": options["optimizer"] == NAME and "it has no gradients of rows to clip",
            f"--monitor {monitor}": bool(monitor)
            and not monitor.startswith("val_")
            and self.is_noisy
            and "values of the training rows have no noise; values of a validation, such as val_loss, come from other rows",
            f"--patience {options['patience']}": options["patience"] is not None
            and not validated
            and self.is_noisy
            and alone,
            f"--schedule {schedule}": follows and not validated and self.is_noisy and alone,
        }
        for option, reason in problems.items():
            if reason:
                raise click.UsageError(f"{option} and {named} do not go together: {reason}")

    def check_start(self, trainer: Trainer, path: Path | None, is_resumed: bool) -> None:
        """Reject steps without privacy on private parameters, unless the user wants them."""
        accountant = trainer.accountant
        if (
            path is None
            or accountant is None
            or accountant.is_void
            or self.is_wanted
            or self.private is False
        ):
            return
        raise click.UsageError(
            f"{path} comes from steps with differential privacy, which steps without it would undo: expected --private, "
            "--epsilon or --noise-multiplier, "
            + ("as before" if is_resumed else "which continue to count epsilon, or --from-start")
            + "; or --no-private, if privacy is to end"
        )

    def say_what_is_measured(self, trainer: Trainer, known: Any) -> None:
        """Report that preprocessing that was fitted to the rows has no noise. ``known`` is that of the checkpoint."""
        if self.is_noisy and known is None and trainer.preprocessing is not None:
            click.echo(
                "ortrain: the preprocessing stores facts about the rows without noise, such as means, deviations and "
                "categories; epsilon does not include them",
                err=True,
            )

    def result(self, trainer: Trainer) -> dict[str, Any]:
        """Return what the run has cost, for JSON: nothing if it was not private."""
        chosen = self.chosen
        if not isinstance(chosen, Privacy) or trainer.accountant is None:
            return {}
        history = trainer.accountant.history
        return {
            "epsilon": trainer.accountant.epsilon(chosen.delta),
            "delta": chosen.delta,
            "noise_multiplier": history[-1][0] if history else None,
        }

    def shown(self, trainer: Trainer) -> str | None:
        """Return the same as a line of text."""
        found = self.result(trainer)
        if not found:
            return None
        noise = found["noise_multiplier"]
        about = "" if noise is None else f", noise multiplier {noise:.4g}"
        return f"privacy  epsilon {found['epsilon']:.4g} at delta {found['delta']:g}{about}"


def privacy_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options, and as its argument ``privacy`` their values."""

    @functools.wraps(command)
    def with_privacy(*arguments: Any, **others: Any) -> int:
        chosen = PrivacyOptions(**{each.name: others.pop(each.name) for each in fields(PrivacyOptions)})
        return command(*arguments, privacy=chosen, **others)

    for option in reversed(_OPTIONS):
        with_privacy = option(with_privacy)
    return with_privacy
