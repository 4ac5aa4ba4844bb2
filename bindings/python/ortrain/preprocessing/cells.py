"""The cells of tables: missing ones, numbers, and dates."""

from __future__ import annotations

import datetime
import math
import re
from typing import Any

MISSING = frozenset({"", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?"})
"""Texts, in lower case, that mark a missing value."""

_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:([T ])(\d\d):(\d\d)(?::\d\d(?:\.\d+)?)?)?")


def is_missing(value: Any) -> bool:
    """Whether a cell has no value."""
    if isinstance(value, str):
        return value.strip().lower() in MISSING
    return value is None or (isinstance(value, float) and math.isnan(value))


def number_of(value: Any) -> float | None:
    """Return the number in a cell, None if the cell has something else."""
    if isinstance(value, (datetime.date, list, dict, bytes)) or (isinstance(value, str) and "_" in value):
        return None
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def date_of(value: Any) -> datetime.datetime | None:
    """Return the date in a cell, to the minute, None if the cell has something else.

    Texts are dates in the form of ISO 8601, as in 2026-03-01 or 2026-03-01T14:30.
    """
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.timezone.utc).replace(tzinfo=None) if value.tzinfo else value
    if isinstance(value, datetime.date):
        return datetime.datetime(value.year, value.month, value.day)
    found = _DATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        return None
    year, month, day, _, hour, minute = found.groups()
    try:
        return datetime.datetime(int(year), int(month), int(day), int(hour or 0), int(minute or 0))
    except ValueError:
        return None


def separator_of(value: Any) -> str | None:
    """Return the character between date and time in a cell, None if the cell has no time."""
    if isinstance(value, datetime.datetime):
        return "T"
    found = _DATE.fullmatch(value.strip()) if isinstance(value, str) else None
    return None if found is None else found.group(4)


def text_of(value: Any) -> str:
    """Return the category that a cell names; that of a missing cell is empty."""
    return "" if is_missing(value) else str(value).strip()
