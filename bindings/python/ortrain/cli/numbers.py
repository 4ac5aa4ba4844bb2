"""Numbers as options. Click calls them ranges, also in messages: "'abc' is not a valid float range"."""

from __future__ import annotations

import click


class Integer(click.IntRange):
    """An integer between bounds."""

    name = "integer"


class Number(click.FloatRange):
    """A floating-point number between bounds."""

    name = "number"


def picture_size(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    """Return the height and width that an option names, as in 48x192; one number is both."""
    if value is None:
        return None
    parts = value.lower().split("x")
    if len(parts) > 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise click.BadParameter(
            f"expected a height and a width, such as 48x192, found {value!r}", context, parameter
        )
    return int(parts[0]), int(parts[-1])
