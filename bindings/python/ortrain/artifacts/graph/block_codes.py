"""Codes of few bits for the rows of a matrix, in the layout of the operators MatMulNBits and GatherBlockQuantized.

A row is divided into blocks of neighbours. The numbers of a block share a scale and, if the layer has zero points, a zero
point: a number is ``(code - zero) scale``. Without zero points, ``zero`` is the middle code, ``2^(bits-1)``. The lowest bits of
a byte come first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_ROWS = 2**20  # numbers that are encoded or decoded at a time


@dataclass(frozen=True)
class Coding:
    """How numbers become codes."""

    bits: int = 4
    block: int = 32
    zero_points: bool = True

    def __post_init__(self) -> None:
        """Reject settings that the operators do not have."""
        if self.bits not in (2, 4, 8):
            raise ValueError(f"bits: expected 2, 4 or 8, found {self.bits}")
        if self.block < 16 or self.block & (self.block - 1):
            raise ValueError(f"block_size: expected a power of two of at least 16, found {self.block}")

    @property
    def largest(self) -> int:
        """The largest code."""
        return int(2**self.bits - 1)

    @property
    def middle(self) -> int:
        """The code of zero without zero points."""
        return int(2 ** (self.bits - 1))


@dataclass(frozen=True)
class Codes:
    """An encoded matrix."""

    coding: Coding
    columns: int
    packed: Array
    """uint8 ``[rows, blocks, block * bits / 8]``."""
    scales: Array
    """``[rows, blocks]``."""
    zeros: Array | None
    """uint8 ``[rows, ceil(blocks * bits / 8)]``, float ``[rows, blocks]``, or None."""

    @property
    def bytes(self) -> int:
        """The size of codes, scales and zero points."""
        return int(self.packed.nbytes + self.scales.nbytes + (0 if self.zeros is None else self.zeros.nbytes))

    def parts(self) -> list[slice]:
        """Return parts of the rows that are small enough to decode at a time."""
        return parts_of_rows(len(self.packed), self.columns)

    def of(self, rows: slice) -> Codes:
        """Return the codes of some rows."""
        zeros = None if self.zeros is None else self.zeros[rows]
        return Codes(self.coding, self.columns, self.packed[rows], self.scales[rows], zeros)


def encode(matrix: Array, coding: Coding) -> Codes:
    """Return the codes of a matrix of float numbers."""
    rows, columns = matrix.shape
    parts = [_encoded(matrix[part], coding) for part in parts_of_rows(rows, columns)]
    packed, scales, zeros = (np.concatenate(list(part)) for part in zip(*parts, strict=True))
    return Codes(coding, columns, packed, scales, zeros if coding.zero_points else None)


def parts_of_rows(rows: int, columns: int) -> list[slice]:
    """Return parts of the rows of a matrix that need little memory in any type."""
    step = max(1, _ROWS // columns)
    return [slice(at, at + step) for at in range(0, rows, step)]


def decode(codes: Codes, groups: Array | None = None) -> npt.NDArray[np.float32]:
    """Return the matrix that codes stand for. `groups` are the blocks of columns that are out of order."""
    bits, blocks = codes.coding.bits, codes.scales.shape[1]
    numbers = unpacked(codes.packed, bits).astype(np.float32)
    scales = codes.scales.astype(np.float32)
    if codes.zeros is None:
        zeros = np.full(scales.shape, codes.coding.middle, np.float32)
    elif codes.zeros.dtype == np.uint8:
        zeros = unpacked(codes.zeros, bits)[:, :blocks].astype(np.float32)
    else:
        zeros = codes.zeros.astype(np.float32)
    if groups is not None:
        flat = numbers.reshape(len(numbers), -1)[:, : codes.columns]
        order = groups[: codes.columns]
        return np.asarray((flat - zeros[:, order]) * scales[:, order])
    numbers -= zeros[:, :, None]
    numbers *= scales[:, :, None]
    return numbers.reshape(len(numbers), -1)[:, : codes.columns]


def _encoded(matrix: Array, coding: Coding) -> tuple[Array, Array, Array]:
    rows, columns = matrix.shape
    blocks = -(-columns // coding.block)
    padded = np.zeros((rows, blocks * coding.block), np.float32)
    padded[:, :columns] = matrix
    values = padded.reshape(rows, blocks, coding.block)
    if coding.zero_points:
        low, high = np.minimum(values.min(2), 0), np.maximum(values.max(2), 0)
        scales = ((high - low) / coding.largest).astype(matrix.dtype)
        zeros = np.rint(_divided(-low, scales)).clip(0, coding.largest)
    else:
        # the number farthest from zero gets the lowest code: from the middle, it is one step farther than the highest
        farthest = np.take_along_axis(values, np.abs(values).argmax(2)[..., None], 2)[..., 0]
        scales = (farthest / -coding.middle).astype(matrix.dtype)
        zeros = np.full(scales.shape, coding.middle, np.float32)
    codes = np.rint(_divided(values, scales[..., None])) + zeros[..., None]
    codes = codes.clip(0, coding.largest).astype(np.uint8)
    return _packed(codes, coding.bits), scales, _packed(zeros.astype(np.uint8), coding.bits)


def _divided(values: Array, scales: Array) -> npt.NDArray[np.float32]:
    """Return quotients; zero where the scale is zero."""
    divisors = scales.astype(np.float32)
    quotients = np.zeros(values.shape, np.float32)
    np.divide(values, divisors, out=quotients, where=divisors != 0)
    return quotients


def _packed(codes: Array, bits: int) -> Array:
    """Return codes of the last axis, several to a byte if they have fewer than 8 bits."""
    count = 8 // bits
    missing = -codes.shape[-1] % count
    if missing:
        codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], missing), np.uint8)], -1)
    bytes_: Array = codes[..., ::count]
    for place in range(1, count):
        bytes_ = bytes_ | codes[..., place::count] << place * bits
    return bytes_


def unpacked(packed: Array, bits: int) -> Array:
    """Return the codes in bytes, along the last axis."""
    if bits == 8:
        return packed
    parts = [packed >> place & 2**bits - 1 for place in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*packed.shape[:-1], -1)
