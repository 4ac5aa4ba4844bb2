"""Numbers of things in messages."""

from __future__ import annotations


def counted(count: int, noun: str, spec: str = "") -> str:
    """Return a number with its noun, such as ``1 row`` or ``2 batches``.

    Parameters
    ----------
    count : int
        The number.
    noun : str
        The noun in the singular, with words before it if there are any, such as ``optimizer step``.
    spec : str, default ""
        The format of the number, such as ``,`` for ``1,024 bytes``.
    """
    if count == 1:
        return f"{count:{spec}} {noun}"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{count:{spec}} {noun[:-1]}ies"
    return f"{count:{spec}} {noun}{'es' if noun.endswith(('s', 'x', 'tch', 'sh')) else 's'}"


def sized(count: float) -> str:
    """Return a number of bytes, in MB, or in kB if it is less than 0.1 MB."""
    return f"{count / 1e6:.2f} MB" if count >= 1e5 else f"{count / 1e3:.2f} kB"


def agreeing(count: int, one: str, several: str) -> str:
    """Return the verb for a number of things, such as ``is`` or ``are``."""
    return one if count == 1 else several
