"""Numbers as options. Click calls them ranges, also in messages: "'abc' is not a valid float range"."""

from __future__ import annotations

import click


class Integer(click.IntRange):
    """An integer between bounds."""

    name = "integer"


class Number(click.FloatRange):
    """A floating-point number between bounds."""

    name = "number"
