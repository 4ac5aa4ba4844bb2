"""Pictures that are read when they are needed: turned upright, resized, and normalized for each channel.

Threads decode the pictures of a batch. Decoded pictures are kept in memory, as bytes, up to a limit; the others are decoded
again in every epoch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain._support.counts import counted

Array = npt.NDArray[Any]

KEPT_BYTES = 256 << 20
"""The most bytes of decoded pictures that are kept in memory."""

_MEASURED = 1000  # pictures from which mean and deviation are computed
_KNOWN = {
    "none": ((0.0,), (1.0,)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5,), (0.5,)),
}


@dataclass(frozen=True)
class ImagePreprocessing:
    """Mean and deviation of each channel, of pixels from 0 to 1, and the size of pictures if the model leaves it free."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    size: tuple[int, int] | None = None
    """Height and width."""

    def as_json(self) -> dict[str, Any]:
        """Return values that JSON can represent."""
        size = {} if self.size is None else {"size": list(self.size)}
        return {"kind": "image", "mean": list(self.mean), "deviation": list(self.deviation), **size}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> ImagePreprocessing:
        """Return what `as_json` returned."""
        height, width = value.get("size", (None, None))
        size = None if height is None else (int(height), int(width))
        return cls(tuple(map(float, value["mean"])), tuple(map(float, value["deviation"])), size)

    def shown(self) -> str:
        """Return mean and deviation as text."""
        mean, deviation = (
            ", ".join(f"{each:.3g}" for each in values) for values in (self.mean, self.deviation)
        )
        return f"mean {mean}, deviation {deviation}"


def shape_of_size(dims: Sequence[int | None], size: tuple[int, int]) -> list[int | None]:
    """Return the dimensions of a picture, of which None are free, with height and width of the given size if these are free."""
    height = 1 if len(dims) == 3 and dims[0] in (1, 3) else 0
    if len(dims) not in (2, 3):
        return list(dims)
    sized = [own or given for own, given in zip(dims[height : height + 2], size, strict=True)]
    return [*dims[:height], *sized, *dims[height + 2 :]]


def normalization_of(choice: str, channels: int) -> ImagePreprocessing:
    """Return the normalization of a name, or of the file preprocessor_config.json that Hugging Face writes beside a model.

    Raises
    ------
    ValueError
        When there is no such name, or the file has no mean and deviation of the channels.
    """
    if choice in _KNOWN:
        mean, deviation = _KNOWN[choice]
    else:
        path = Path(choice)
        if not path.is_file():
            raise ValueError(
                f"--normalize: expected measured, {', '.join(_KNOWN)} or a preprocessor_config.json, found {choice!r}"
            )
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            mean, deviation = tuple(map(float, found["image_mean"])), tuple(map(float, found["image_std"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"--normalize: expected image_mean and image_std in {path}: {type(error).__name__}: {error}"
            ) from error
    mean, deviation = (values * channels if len(values) == 1 else values for values in (mean, deviation))
    if len(mean) != channels or len(deviation) != channels or min(deviation) <= 0:
        raise ValueError(
            f"--normalize: expected {counted(channels, 'mean')} and positive deviations, one for each channel, found {mean} "
            f"and {deviation}"
        )
    return ImagePreprocessing(mean, deviation)


class Pictures:
    """The rows of a folder of pictures, or of another source of them, which can be chosen by number.

    Parameters
    ----------
    open_row : callable
        Returns the picture of a row, opened by Pillow.
    count : int
        The number of rows.
    name : str
        The input of the model.
    shape : list of int
        The shape that the model takes: height and width, and 1 or 3 channels before or after them.
    target : tuple of str and array, optional
        The name of the target and its values.
    threads : int, optional
        Number of threads that decode; by default one per processor, at most 8.

    Attributes
    ----------
    normalization : ImagePreprocessing
        Mean and deviation of the channels.
    """

    def __init__(
        self,
        open_row: Callable[[int], Any],
        count: int,
        name: str,
        shape: Sequence[int],
        target: tuple[str, Array] | None = None,
        threads: int | None = None,
    ) -> None:
        self._open, self._count, self._name, self._target = open_row, count, name, target
        self._axis = next((axis for axis in (0, -1) if len(shape) == 3 and shape[axis] in (1, 3)), None)
        self._shape = list(shape)
        if self._axis is None:
            self._height, self._width, self.channels = *shape, 1
        elif self._axis == 0:
            self.channels, self._height, self._width = shape
        else:
            self._height, self._width, self.channels = shape
        self.normalization = normalization_of("none", self.channels)
        self._pool = ThreadPoolExecutor(
            threads or min(8, os.cpu_count() or 1), thread_name_prefix="ortrain-pictures"
        )
        self._kept: dict[int, Array] = {}
        self._room = KEPT_BYTES // max(1, self._height * self._width * self.channels)

    def __len__(self) -> int:
        return self._count

    def with_format(self, kind: str) -> Pictures:
        """Return the pictures, as the rows of a table are asked for."""
        return self

    def __getitem__(self, rows: Sequence[int]) -> dict[str, Array]:
        """Return the pictures of rows in the shape that the model takes, and their targets."""
        mean, deviation = (
            np.array(values, np.float32) for values in (self.normalization.mean, self.normalization.deviation)
        )
        values = self.bytes_of(rows).astype(np.float32) / np.float32(255)
        values = (values - mean) / deviation
        if self._axis == 0:
            values = np.ascontiguousarray(values.transpose(0, 3, 1, 2))
        found = {self._name: values.reshape(len(rows), *self._shape)}
        if self._target is not None:
            found[self._target[0]] = self._target[1][list(rows)]
        return found

    def bytes_of(self, rows: Sequence[int]) -> Array:
        """Return the resized pixels of rows, [rows, height, width, channels]."""
        pixels = np.empty((len(rows), self._height, self._width, self.channels), np.uint8)
        for place, found in enumerate(self._pool.map(self._row, rows)):
            pixels[place] = found
        return pixels

    def _row(self, row: int) -> Array:
        kept = self._kept.get(row)
        if kept is not None:
            return kept
        from PIL import Image, ImageOps

        picture: Any = ImageOps.exif_transpose(self._open(row))
        picture = picture.convert("RGB" if self.channels == 3 else "L")
        if picture.size != (self._width, self._height):
            picture = picture.resize((self._width, self._height), Image.Resampling.BILINEAR)
        pixels = np.asarray(picture, np.uint8).reshape(self._height, self._width, self.channels)
        if len(self._kept) < self._room:
            self._kept[row] = pixels
        return pixels

    def measured(self, rows: Sequence[int]) -> ImagePreprocessing:
        """Return mean and deviation of the channels over rows, of at most 1,000 of them."""
        chosen = [
            rows[place] for place in np.linspace(0, len(rows) - 1, min(len(rows), _MEASURED)).astype(int)
        ]
        sums, squares, count = np.zeros(self.channels), np.zeros(self.channels), 0
        for start in range(0, len(chosen), 32):
            pixels = self.bytes_of(chosen[start : start + 32]).reshape(-1, self.channels) / 255.0
            sums += pixels.sum(axis=0)
            squares += (pixels**2).sum(axis=0)
            count += len(pixels)
        mean = sums / count
        deviation = np.sqrt(np.maximum(squares / count - mean**2, 0))
        return ImagePreprocessing(
            tuple(round(float(each), 6) for each in mean),
            tuple(round(float(each), 6) or 1.0 for each in deviation),
        )
