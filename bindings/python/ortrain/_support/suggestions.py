"""Names that a user may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` with the known names that are most like a name; nothing if there are none."""
    by_lower = {candidate.lower(): candidate for candidate in reversed(list(known))}
    near = [by_lower[found] for found in difflib.get_close_matches(name.lower(), by_lower, n=3)]
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
