"""The option --adapter, which says what of a model is trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

NEW = ("lora", "dora")
"""Kinds of new adapters. The second one is the first one with the setting ``use_dora``."""
WEIGHTS = "none"
"""Stands for the weights themselves."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


class _Adapter(click.ParamType[str]):
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
