"""The checks by which the server of a federation accepts a reply of a client. This module does not need Flower.

A client may be broken, of another version, or hostile. A single invalid reply would stop the server or spoil the common model,
so each reply is checked before a strategy sees it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

COUNT = "num-examples"
MOST_ROWS = 1 << 53
"""The largest weight of a reply: a double cannot represent all larger integers."""
_SHOWN = 5


@dataclass(frozen=True)
class ArraySpec:
    """What an array has to be: its shape, and the type to which it is converted."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def spec_of(array: Array) -> ArraySpec:
    """Return the shape and type that an array needs to replace another one."""
    return ArraySpec(array.shape, array.dtype)


def arrays_problem(
    found: Mapping[str, Callable[[], Array]], expected: Mapping[str, ArraySpec], names: str = "arrays"
) -> str:
    """Return what is wrong with arrays, an empty text if nothing is.

    Parameters
    ----------
    found : mapping of str to callable
        Each returns an array, or raises what is wrong with its bytes.
    expected : mapping of str to ArraySpec
        The arrays that were asked for.
    names : str, default "arrays"
        What they are, in the text.
    """
    missing = [name for name in expected if name not in found]
    unknown = [name for name in found if name not in expected]
    if missing or unknown:
        differences = [
            f"{kind} {_listed(some)}" for kind, some in (("no", missing), ("also", unknown)) if some
        ]
        return f"{names}: expected {_listed(list(expected))}, found {' and '.join(differences)}"
    for name, spec in expected.items():
        try:
            array = found[name]()
        except Exception as error:  # invalid bytes are the fault of this client and must not stop the server
            return f"{name}: expected an array, found bytes that are not an array: {type(error).__name__}: {error}"[
                :300
            ]
        problem = array_problem(array, spec)
        if problem:
            return f"{name}: {problem}"
    return ""


def array_problem(array: Any, spec: ArraySpec) -> str:
    """Return what is wrong with an array, an empty text if nothing is."""
    if not isinstance(array, np.ndarray):
        return f"expected an array, found {type(array).__name__}"
    if array.shape != spec.shape:
        return f"expected the shape {spec.shape}, found {array.shape}"
    if not np.can_cast(array.dtype, spec.dtype, "same_kind"):
        return f"expected {spec.dtype}, found {array.dtype}"
    if spec.dtype.kind not in "fc":
        return ""
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(array.astype(spec.dtype, copy=False))
    if not finite.all():
        return (
            f"expected finite numbers, found {int(finite.size - finite.sum())} of {finite.size} that are not"
        )
    return ""


def metrics_problem(found: Mapping[str, Any], most_rows: float = MOST_ROWS) -> str:
    """Return what is wrong with the numbers that a client reports, an empty text if nothing is.

    Parameters
    ----------
    found : mapping of str to number or list of numbers
        With the number of rows, which is the client's weight in means.
    most_rows : float
        The highest number of rows.
    """
    if COUNT not in found:
        return f"metrics: expected {COUNT}, found {_listed(list(found)) or 'none'}"
    count = found[COUNT]
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or not 1 <= count <= most_rows:
        return f"{COUNT}: expected a whole number from 1 to {most_rows:.17g}, found {count!r:.40}"
    for name, value in found.items():
        try:
            finite = np.isfinite(np.asarray(value, np.float64)).all()
        except (TypeError, ValueError, OverflowError):
            return f"{name}: expected numbers, found {value!r:.40}"
        if not finite:
            return f"{name}: expected a finite number, found {value!r:.40}"
    return ""


def odd_ones(reports: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
    """Return which clients report other metrics than most of them, with the reason. No mean can be taken of theirs.

    Parameters
    ----------
    reports : mapping of int to mapping
        The metrics of each client by its number.
    """
    kinds = {client: _kind_of(report) for client, report in reports.items()}
    if len(set(kinds.values())) <= 1:
        return {}
    usual = Counter(kinds.values()).most_common(1)[0][0]
    expected = _listed([name for name, _ in usual])
    return {
        client: f"metrics: expected {expected}, as from most clients, found {_listed([name for name, _ in kind])}"
        for client, kind in kinds.items()
        if kind != usual
    }


def _kind_of(report: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Return names and lengths; a single number has no length."""
    return tuple(
        sorted((name, len(value) if isinstance(value, list) else -1) for name, value in report.items())
    )


def entries_problem(found: Mapping[str, Any], kinds: Mapping[str, type], *, paired: bool = False) -> str:
    """Return what is wrong with the entries of a message, an empty text if nothing is.

    Parameters
    ----------
    found : mapping
        The entries.
    kinds : mapping of str to type
        The type of each; lists of a type are of ``list[type]``, given as that type, with ``paired``.
    paired : bool, default False
        Whether all are lists, of the same length.
    """
    for name, kind in kinds.items():
        value = found.get(name)
        values: Sequence[Any] = value if paired and isinstance(value, list) else [value]
        if (paired and not isinstance(value, list)) or not all(isinstance(each, kind) for each in values):
            what = f"a list of {kind.__name__}" if paired else kind.__name__
            return f"{name}: expected {what}, found {type(value).__name__}"
    lengths = {name: len(found[name]) for name in kinds if paired}
    if len(set(lengths.values())) > 1:
        return f"expected lists of one length, found {lengths}"
    return ""


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(str(name)[:60] for name in names[:_SHOWN])
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
