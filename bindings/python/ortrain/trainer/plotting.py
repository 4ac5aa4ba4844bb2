"""Pictures of a run: of its history here, of a search for a learning rate in `rate_search`."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ortrain._files.writing import replaced_file


def picture(width: float, height: float) -> Any:
    """Return an empty figure of a size in inches, which a notebook shows.

    Raises
    ------
    ImportError
        When matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plot needs matplotlib: pip install matplotlib") from error

    class Picture(Figure):
        """A figure that notebooks show even if they have not loaded pyplot."""

        def _repr_png_(self) -> bytes:
            written = io.BytesIO()
            self.savefig(written, dpi=100, format="png")
            return written.getvalue()

    return Picture(figsize=(width, height), layout="constrained")


def save(figure: Any, path: str | os.PathLike[str] | None) -> None:
    """Write a figure in the format that the ending names, PNG without one; nothing without a path."""
    if path is None:
        return
    kind = Path(path).suffix[1:]
    with replaced_file(path, "picture") as file:
        figure.savefig(file, dpi=150, format=kind or None)


def plot(history: Mapping[str, Sequence[Any]], path: str | os.PathLike[str] | None = None) -> Any:
    """Draw the curves of a history, one panel per value with its validation beside it. Needs matplotlib.

    Parameters
    ----------
    history : mapping of str to list of float
        As ``Trainer.fit`` returns it.
    path : str or os.PathLike, optional
        Where the picture is saved; the ending is its format, PNG without one.

    Returns
    -------
    matplotlib.figure.Figure
        The picture, which a notebook shows.
    """
    names = [
        name
        for name, values in history.items()
        if not name.startswith("val_") and values and all(isinstance(value, (int, float)) for value in values)
    ]
    if not names:
        raise ValueError("plot: expected a history with at least one epoch, found none")
    figure = picture(4.5 * len(names), 3.5)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for key, label in ((name, "training"), (f"val_{name}", "validation")):
            if key in history:
                axes.plot(range(1, len(history[key]) + 1), history[key], marker=".", label=label)
        axes.set(title=name, xlabel="epoch")
        axes.grid(alpha=0.3)
        axes.legend()
    save(figure, path)
    return figure
