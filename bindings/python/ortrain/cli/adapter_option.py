"""The option --adapter, which says what of a model is trained, and the settings of new adapters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ortrain.cli.numbers import Integer, Number

if TYPE_CHECKING:
    from ortrain.artifacts import LoRA

NEW = ("lora", "dora")
"""Kinds of new adapters. The second one is the first one with the setting ``use_dora``."""
WEIGHTS = "none"
"""Stands for the weights themselves."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


if TYPE_CHECKING:
    _ParamType = click.ParamType[str]
else:
    _ParamType = click.ParamType  # click 8.1 takes no type


class _Adapter(_ParamType):
    """A kind of new adapters, ``none``, or a folder of PEFT."""

    name = "adapter"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        given = str(value)
        if given not in (*NEW, WEIGHTS) and not Path(given).is_dir():
            self.fail(
                f"expected {', '.join(NEW)}, {WEIGHTS}, or a folder with the adapters that PEFT saved, found {given!r}",
                param,
                ctx,
            )
        return given


def adapter_option(default: str, condition: str = "") -> Callable[[_Command], _Command]:
    """Return the option of a command. `condition` is the start of the help text."""
    return click.option(
        "--adapter",
        type=_Adapter(),
        metavar="|".join((*NEW, WEIGHTS, "DIR")),
        help=f"{condition}what is trained: new low-rank adapters (lora), also with the norm of each output's weights (dora), "
        f"the weights instead (none), or the adapters that PEFT saved in a folder (default {default})",
    )


def settings_options(alpha: str, condition: str = "") -> list[Callable[[_Command], _Command]]:
    """Return the options for the settings of new adapters. `condition` is the start of the help texts.

    `alpha` describes the default of the option of that name.
    """
    return [
        click.option("--rank", type=Integer(min=1), help=f"{condition}rank of new adapters (default 8)"),
        click.option(
            "--alpha",
            type=float,
            help=f"{condition}new adapters are scaled by alpha / rank (default {alpha})",
        ),
        click.option(
            "--dropout",
            type=Number(min=0, max=1, max_open=True),
            metavar="P",
            help=f"{condition}probability with which a train step drops an element of the input of a new adapter (default 0)",
        ),
        click.option(
            "--bias",
            type=click.Choice(["none", "all", "lora_only"]),
            help=f"{condition}biases that are trained beside new adapters: none (default), all of the model, or those of layers "
            "with adapters",
        ),
        click.option(
            "--rslora",
            is_flag=True,
            default=None,
            help=f"{condition}scale new adapters by alpha / sqrt(rank), as rank-stabilized LoRA does",
        ),
    ]


@dataclass(frozen=True)
class AdapterSettings:
    """The settings of new adapters. An option that was not given is None."""

    rank: int | None = None
    alpha: float | None = None
    dropout: float | None = None
    bias: str | None = None
    rslora: bool | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The values by option, without those that were not given."""
        values = {
            "--rank": self.rank,
            "--alpha": self.alpha,
            "--dropout": self.dropout,
            "--bias": self.bias,
            "--rslora": self.rslora,
        }
        return {option: value for option, value in values.items() if value is not None}

    def refuse(self, adapter: str) -> None:
        """Reject the settings, because `adapter` makes no new adapters."""
        if self.given:
            raise click.UsageError(
                f"{next(iter(self.given))} is a setting of new adapters: expected --adapter {' or '.join(NEW)}, found {adapter}"
            )

    def lora(self, **others: Any) -> LoRA:
        """Return new adapters."""
        from ortrain.artifacts import LoRA

        return LoRA(
            r=8 if self.rank is None else self.rank,
            alpha=16 if self.alpha is None else self.alpha,
            dropout=self.dropout or 0.0,
            bias=self.bias or "none",
            use_rslora=bool(self.rslora),
            **others,
        )


def with_settings(alpha: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of `settings_options`, and as its argument ``new_adapters`` their values."""

    def changed(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_values(*arguments: Any, **others: Any) -> None:
            chosen = AdapterSettings(**{each.name: others.pop(each.name) for each in fields(AdapterSettings)})
            command(*arguments, new_adapters=chosen, **others)

        for option in reversed(settings_options(alpha)):
            with_values = option(with_values)
        return with_values

    return changed
