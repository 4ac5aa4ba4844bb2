"""Keras's messages about a model that cannot be called."""

from __future__ import annotations

import re


def reason_of(error: Exception) -> str:
    """Return the reason from an error of Keras. The error highlights the reason, and lists the arguments after it."""
    text = str(error)
    highlighted = re.search(r"\033\[1m(.*?)\033\[0m", text, re.DOTALL)
    return highlighted[1] if highlighted else text
