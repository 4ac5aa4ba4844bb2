"""Changes of pictures that a network trains on: shifted, mirrored, recolored or mixed with others, at random.

Pillow resamples pictures; NumPy does the other changes, which are indexing and sums. The usual packages do not fit:
albumentations is no longer maintained, the license of its successor is the AGPL, and torchvision needs PyTorch. A program may
pass a function that calls one of them, beside the names of operations.

No operation knows how pixels were scaled: shifted pictures repeat their edges, holes get the mean of the picture, and colors
change relative to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain._support.suggestions import did_you_mean

Array = npt.NDArray[Any]
Generator = np.random.Generator
Function = Callable[[Array, Generator], Array]


def _flip(pictures: Array, rng: Generator, share: float) -> Array:
    mirrored = rng.random(len(pictures)) < share
    return np.where(mirrored[:, None, None, None], pictures[..., ::-1], pictures)


def _crop(pictures: Array, rng: Generator, share: float) -> Array:
    count, _, height, width = pictures.shape
    rows, columns = (
        np.clip(np.arange(size) + rng.integers(-most, most + 1, count)[:, None], 0, size - 1)
        for size, most in ((height, round(share * height)), (width, round(share * width)))
    )
    moved = pictures[np.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    found: Array = moved.transpose(0, 3, 1, 2)
    return found


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("augment: zoom and rotate need Pillow: pip install 'ortrain[data]'") from error
    return Image


def _planes(pictures: Array, change: Callable[[int, Any], Any]) -> Array:
    """Return pictures whose channels a function has changed one by one with Pillow. The function gets the row and the plane."""
    opener = _pillow()
    planes = [
        [
            np.asarray(change(row, opener.fromarray(np.ascontiguousarray(plane, np.float32))))
            for plane in picture
        ]
        for row, picture in enumerate(pictures)
    ]
    return np.array(planes, dtype=pictures.dtype)


def _zoom(pictures: Array, rng: Generator, share: float) -> Array:
    count, _, height, width = pictures.shape
    area, turned = rng.uniform(share, 1, count), rng.uniform(math.log(3 / 4), math.log(4 / 3), count)
    tall = np.minimum(height, height * np.sqrt(area) * np.exp(turned / 2))
    wide = np.minimum(width, width * np.sqrt(area) * np.exp(-turned / 2))
    top, left = rng.random(count) * (height - tall), rng.random(count) * (width - wide)
    resampling = _pillow().Resampling.BILINEAR

    def part(row: int, plane: Any) -> Any:
        box = (left[row], top[row], left[row] + wide[row], top[row] + tall[row])
        return plane.resize((width, height), resampling, box=box)

    return _planes(pictures, part)


def _rotate(pictures: Array, rng: Generator, degrees: float) -> Array:
    count, _, height, width = pictures.shape
    angles = np.asarray(rng.uniform(-degrees, degrees, count))
    most = math.radians(min(degrees, 90))
    room = math.ceil(max(height, width) * (math.cos(most) + math.sin(most) - 1) / 2) + abs(height - width) + 1
    edges = ((0, 0), (0, 0), (room, room), (room, room))
    resampling = _pillow().Resampling.BILINEAR
    turned = _planes(
        np.pad(pictures, edges, mode="edge"), lambda row, plane: plane.rotate(angles[row], resampling)
    )
    return turned[:, :, room : room + height, room : room + width]


def _color(pictures: Array, rng: Generator, strength: float) -> Array:
    brightness, contrast, saturation = rng.uniform(-strength, strength, (3, len(pictures), 1, 1, 1))
    mean = pictures.mean(axis=(1, 2, 3), keepdims=True)
    spread = pictures.std(axis=(1, 2, 3), keepdims=True)
    gray = pictures.mean(axis=1, keepdims=True)
    colored = gray + (1 + saturation) * (pictures - gray)
    found: Array = mean + (1 + contrast) * (colored - mean) + brightness * spread
    return found


def _cutout(pictures: Array, rng: Generator, share: float) -> Array:
    count, _, height, width = pictures.shape
    side = share * min(height, width)
    holes = _inside(_boxes(rng, np.full(count, side), np.full(count, side), height, width), height, width)
    return np.where(holes[:, None], pictures.mean(axis=(2, 3), keepdims=True), pictures)


def _boxes(rng: Generator, tall: Array, wide: Array, height: int, width: int) -> Array:
    """Return top, bottom, left and right of boxes of a size around random pixels, cut off at the edges of the picture."""
    count = len(tall)
    y, x = rng.integers(0, height, count), rng.integers(0, width, count)
    top, left = (np.rint(middle - size / 2) for middle, size in ((y, tall), (x, wide)))
    bottom, right = top + np.rint(tall), left + np.rint(wide)
    return np.array(
        [np.maximum(top, 0), np.minimum(bottom, height), np.maximum(left, 0), np.minimum(right, width)]
    )


def _inside(boxes: Array, height: int, width: int) -> Array:
    """Return which pixels are in the box of each row, ``[rows, height, width]``."""
    top, bottom, left, right = boxes[:, :, None]
    y, x = np.arange(height), np.arange(width)
    found: Array = ((y >= top) & (y < bottom))[:, :, None] & ((x >= left) & (x < right))[:, None, :]
    return found


def _mixup(pictures: Array, rng: Generator, alpha: float) -> tuple[Array, Array, Array]:
    """Return sums of pairs of pictures, the second of each pair, and the share of the first."""
    kept = rng.beta(alpha, alpha, len(pictures))
    other = rng.permutation(len(pictures))
    weight = kept[:, None, None, None]
    return weight * pictures + (1 - weight) * pictures[other], other, kept


def _cutmix(pictures: Array, rng: Generator, alpha: float) -> tuple[Array, Array, Array]:
    """Return pictures with a box from another picture, the index of the other picture, and the share of the area that is kept."""
    count, _, height, width = pictures.shape
    side = np.sqrt(1 - rng.beta(alpha, alpha, count))
    other = rng.permutation(count)
    pasted = _inside(_boxes(rng, side * height, side * width, height, width), height, width)
    kept = 1 - pasted.mean(axis=(1, 2))
    return np.where(pasted[:, None], pictures[other], pictures), other, kept


@dataclass(frozen=True)
class Operation:
    """A change of pictures that has a name.

    Parameters
    ----------
    strength : float
        The setting, unless a user gives another one.
    meaning : str
        What the setting is.
    most : float
        The largest setting; the smallest is above 0.
    """

    strength: float
    meaning: str
    most: float
    run: Callable[..., Any]
    mixes: bool = False


OPERATIONS: dict[str, Operation] = {
    "crop": Operation(0.125, "moved in each direction by up to this share of its size; edges are repeated", 1, _crop),
    "zoom": Operation(0.5, "a part of at least this share of the area, enlarged to the whole", 1, _zoom),
    "rotate": Operation(15, "turned by up to this many degrees to either side; edges are repeated", 180, _rotate),
    "flip": Operation(0.5, "left and right exchanged, with this probability", 1, _flip),
    "color": Operation(0.3, "brightness, contrast and saturation changed by up to this share", 1, _color),
    "cutout": Operation(0.5, "a square with sides of this share of the shorter side gets the mean of the picture", 1, _cutout),
    "mixup": Operation(0.2, "the weighted sum of two pictures and of their targets; parameter of the beta "
                       "distribution of the weights", math.inf, _mixup, True),
    "cutmix": Operation(1.0, "a box from another picture, and its share of the target; parameter of the beta "
                        "distribution of the area that is kept", math.inf, _cutmix, True),
}  # fmt: skip
"""The operations in the order in which they run."""


@dataclass(frozen=True)
class Augmentation:
    """The changes of the pictures of each training batch.

    Parameters
    ----------
    strengths : dict of str to float
        The settings of operations, in the order in which they run.
    functions : tuple of callable
        Functions of the pictures, ``[rows, channels, height, width]``, and a random number generator. They run before
        pictures are mixed.
    """

    strengths: Mapping[str, float]
    functions: tuple[Function, ...] = ()

    @property
    def mixes(self) -> list[str]:
        """The names of the operations that mix targets."""
        return [name for name in self.strengths if OPERATIONS[name].mixes]

    def __str__(self) -> str:
        named = [f"{name}={strength:g}" for name, strength in self.strengths.items()]
        return ",".join([*named, *(str(getattr(f, "__name__", type(f).__name__)) for f in self.functions)])

    def pictures(self, pictures: Array, rng: Generator) -> Array:
        """Return changed pictures, which are not mixed yet.

        Parameters
        ----------
        pictures : array of float
            ``[rows, channels, height, width]``.
        rng : numpy.random.Generator
            The source of all random numbers.
        """
        for name, strength in self.strengths.items():
            if not OPERATIONS[name].mixes:
                pictures = OPERATIONS[name].run(pictures, rng, strength)
        for function in self.functions:
            shape, pictures = pictures.shape, np.asarray(function(pictures, rng))
            if pictures.shape != shape:
                raise ValueError(
                    f"augment: expected pictures of the shape {shape} from {function!r:.60}, found {pictures.shape}"
                )
        return pictures

    def mixed(self, pictures: Array, target: Array, rng: Generator) -> tuple[Array, Array]:
        """Return pictures and targets that are mixed in pairs, by one of the operations that do so."""
        if not self.mixes:
            return pictures, target
        name = self.mixes[int(rng.integers(len(self.mixes)))]
        pictures, other, kept = OPERATIONS[name].run(pictures, rng, self.strengths[name])
        weight = kept.reshape(-1, *[1] * (target.ndim - 1))
        return pictures, (weight * target + (1 - weight) * target[other]).astype(target.dtype)


def augmentation_of(given: Any) -> Augmentation | None:
    """Return the augmentation that a user describes.

    Parameters
    ----------
    given : str or mapping or sequence or callable or None
        ``"crop,flip=0.3"``, ``{"crop": 0.125, "flip": 0.3}``, or a list of such names and of functions.

    Raises
    ------
    TypeError
        When it is of no such kind.
    ValueError
        When a name or a setting is not known.
    """
    if given is None or isinstance(given, Augmentation):
        return given
    if isinstance(given, str):
        given = [part.strip() for part in given.split(",") if part.strip()]
    if isinstance(given, Mapping):
        given = [f"{name}={strength}" for name, strength in given.items()]
    if callable(given):
        given = [given]
    if not isinstance(given, Sequence) or not all(isinstance(each, str) or callable(each) for each in given):
        raise TypeError(
            f"augment: expected names such as 'crop,flip', settings by name, or functions of pictures, found {given!r:.60}"
        )
    chosen = dict(_setting(each) for each in given if isinstance(each, str))
    functions = tuple(each for each in given if not isinstance(each, str))
    if not chosen and not functions:
        return None
    return Augmentation({name: chosen[name] for name in OPERATIONS if name in chosen}, functions)


def _setting(text: str) -> tuple[str, float]:
    """Return name and strength of an operation."""
    name, has_value, value = text.partition("=")
    if name not in OPERATIONS:
        raise ValueError(
            f"augment: there is no {name!r}{did_you_mean(name, OPERATIONS)}; known are {', '.join(OPERATIONS)}"
        )
    operation = OPERATIONS[name]
    if not has_value:
        return name, operation.strength
    try:
        strength = float(value)
    except ValueError:
        strength = math.nan
    if not (0 < strength <= operation.most and math.isfinite(strength)):
        upper = "" if math.isinf(operation.most) else f" and up to {operation.most:g}"
        raise ValueError(
            f"augment: {name}: expected a number above 0{upper} ({operation.meaning}), found {value!r}"
        )
    return name, strength
