"""Forms in which layers store matrices: float numbers, codes with scales and zero points, codes of a codebook.

A coder turns the tensors of a layer into the matrix that the layer reads, and a changed matrix into such tensors again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ortrain.artifacts.graph.block_codes import Codes, Coding, decode, encode, unpacked

Array = npt.NDArray[Any]

#: The values of the 16 codes of MatMulBnb4, by its attribute quant_type: FP4 and NF4. Source of NF4: T. Dettmers et al., "QLoRA:
#: Efficient Finetuning of Quantized LLMs", 2023.
_CODEBOOKS = np.array(
    [
        (0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4, -0.0, -1 / 192, -2 / 3, -1, -1 / 3, -1 / 2, -1 / 6, -1 / 4),
        (
            -1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
            -0.18477343022823334, -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725,
            0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1,
        ),
    ],
    np.float32,
)  # fmt: skip


@dataclass(frozen=True)
class Parts:
    """The tensors in which a layer stores a matrix."""

    codes: Array
    """The numbers themselves, if they are float."""
    scales: Array | None = None
    zeros: Array | None = None

    @property
    def bytes(self) -> int:
        """The size of the scales and zero points."""
        return sum(part.nbytes for part in (self.scales, self.zeros) if part is not None)


class Coder(Protocol):
    """A form in which a layer stores a matrix."""

    @property
    def bits(self) -> int:
        """The number of bits of a number or code."""

    def decode(self, parts: Parts) -> Array:
        """Return the matrix that the layer reads."""

    def obstacle(self, parts: Parts) -> str | None:
        """Return why a changed matrix cannot be stored in this form; None if it can."""

    def encode(self, values: Array, parts: Parts) -> Parts:
        """Return the tensors for a changed matrix; `parts` are the tensors so far."""


@dataclass(frozen=True)
class FloatCoder:
    """Float numbers."""

    bits: int = 32

    def decode(self, parts: Parts) -> Array:
        """Return the numbers."""
        return parts.codes

    def obstacle(self, parts: Parts) -> str | None:
        """Any matrix can be stored."""
        return None

    def encode(self, values: Array, parts: Parts) -> Parts:
        """Return the numbers in the type of the initializer."""
        return Parts(np.ascontiguousarray(values, dtype=parts.codes.dtype))


@dataclass(frozen=True)
class BlockCoder:
    """Rows of packed codes in blocks, of MatMulNBits and GatherBlockQuantized."""

    bits: int
    block: int
    rows: int
    columns: int
    groups: Array | None = None
    """The block of each column, for columns out of order (g_idx)."""

    def _codes(self, parts: Parts) -> Codes:
        assert parts.scales is not None
        blocks = -(-self.columns // self.block)
        zeros = parts.zeros
        if zeros is not None:
            zeros = zeros.reshape(self.rows, -1)
        return Codes(
            Coding(self.bits, self.block, zeros is not None),
            self.columns,
            parts.codes.reshape(self.rows, blocks, self.block * self.bits // 8),
            parts.scales.reshape(self.rows, blocks),
            zeros,
        )

    def decode(self, parts: Parts) -> Array:
        """Return the matrix, ``[rows, columns]``."""
        return decode(self._codes(parts), self.groups)

    def obstacle(self, parts: Parts) -> str | None:
        """Return why a changed matrix cannot be stored in this form; None if it can."""
        return None if self.groups is None else "its blocks have columns out of order (g_idx)"

    def encode(self, values: Array, parts: Parts) -> Parts:
        """Return codes of as many bits, in blocks of the same size."""
        given = self._codes(parts)
        made = encode(values.astype(given.scales.dtype), given.coding)
        assert parts.scales is not None
        zeros = None
        if made.zeros is not None and parts.zeros is not None:
            is_packed = parts.zeros.dtype == np.uint8
            found = made.zeros if is_packed else unpacked(made.zeros, self.bits)[:, : made.scales.shape[1]]
            zeros = found.reshape(parts.zeros.shape).astype(parts.zeros.dtype)
        return Parts(made.packed.reshape(parts.codes.shape), made.scales.reshape(parts.scales.shape), zeros)


@dataclass(frozen=True)
class CodebookCoder:
    """Codes of NF4 and FP4 in blocks that go from one row to the next, of MatMulBnb4."""

    kind: int
    block: int
    rows: int
    columns: int
    bits: int = 4

    def decode(self, parts: Parts) -> Array:
        """Return the matrix, ``[rows, columns]``."""
        assert parts.scales is not None
        size = self.rows * self.columns
        codes = np.stack([parts.codes.ravel() >> 4, parts.codes.ravel() & 15], -1).ravel()[:size]
        scales = parts.scales.ravel().astype(np.float32).repeat(self.block)[:size]
        return np.asarray((_CODEBOOKS[self.kind][codes] * scales).reshape(self.rows, self.columns))

    def obstacle(self, parts: Parts) -> str | None:
        """Any matrix can be stored."""
        return None

    def encode(self, values: Array, parts: Parts) -> Parts:
        """Return the nearest codes, in blocks of the same size."""
        assert parts.scales is not None
        numbers = values.astype(np.float32).ravel()
        blocks = np.zeros((-(-numbers.size // self.block), self.block), np.float32)
        blocks.ravel()[: numbers.size] = numbers
        scales = np.abs(blocks).max(1)
        scaled = np.divide(blocks, scales[:, None], out=np.zeros_like(blocks), where=scales[:, None] > 0)
        order = np.argsort(_CODEBOOKS[self.kind], kind="stable")
        book = _CODEBOOKS[self.kind][order]
        codes = order[np.searchsorted((book[1:] + book[:-1]) / 2, scaled.ravel()[: numbers.size])]
        pairs = np.append(codes, [0] * (codes.size % 2)).astype(np.uint8).reshape(-1, 2)
        packed = pairs[:, 0] << np.uint8(4) | pairs[:, 1]
        return Parts(
            packed.reshape(parts.codes.shape), scales.reshape(parts.scales.shape).astype(parts.scales.dtype)
        )


@dataclass(frozen=True)
class LinearCoder:
    """Integers with a scale for all of them, for each index of an axis, or for each block along an axis."""

    bits: int
    is_signed: bool
    axis: int = 0
    block: int = 0
    """The number of neighbours along the axis that share a scale; 0 without blocks."""

    def _spread(self, numbers: Array, shape: tuple[int, ...]) -> Array:
        """Return a scale or zero point for each number, in a shape that broadcasts."""
        if self.block:
            return np.take(numbers.repeat(self.block, self.axis), np.arange(shape[self.axis]), self.axis)
        if numbers.size == 1:
            return numbers.reshape(())
        return numbers.reshape([-1 if axis == self.axis else 1 for axis in range(len(shape))])

    def _reduced(self, values: Array, function: np.ufunc, like: Array) -> Array:
        """Return the least or largest of the numbers that share a scale, in the shape of the scales."""
        if self.block:
            starts = np.arange(0, values.shape[self.axis], self.block)
            return np.asarray(function.reduceat(values, starts, self.axis))
        if like.size == 1:
            return np.asarray(function.reduce(values, None)).reshape(like.shape)
        others = tuple(axis for axis in range(values.ndim) if axis != self.axis)
        return np.asarray(function.reduce(values, others)).reshape(like.shape)

    def decode(self, parts: Parts) -> Array:
        """Return the matrix."""
        assert parts.scales is not None
        codes = parts.codes.astype(np.float32)
        if parts.zeros is not None:
            codes = codes - self._spread(parts.zeros.astype(np.float32), codes.shape)
        return np.asarray(codes * self._spread(parts.scales.astype(np.float32), codes.shape), np.float32)

    def obstacle(self, parts: Parts) -> str | None:
        """Return why a changed matrix cannot be stored in this form; None if it can."""
        if not self.bits:
            return "its codes are not integers of 4, 8 or 16 bits"
        if parts.zeros is None and not self.is_signed:
            return "its codes have no sign and no zero point, so they cannot represent negative weights"
        return None

    def encode(self, values: Array, parts: Parts) -> Parts:
        """Return codes of the same type. Zero points that are all in the middle of the codes stay there."""
        assert parts.scales is not None
        bits = self.bits - self._is_reduced(parts.codes)
        middle = 0 if self.is_signed else 2 ** (bits - 1)
        lowest, highest = middle - 2 ** (bits - 1), middle + 2 ** (bits - 1) - 1
        numbers = values.astype(np.float32)
        low = np.minimum(self._reduced(numbers, np.minimum, parts.scales), 0)
        high = np.maximum(self._reduced(numbers, np.maximum, parts.scales), 0)
        zeros = None if parts.zeros is None else parts.zeros.astype(np.int32)
        if zeros is None or (zeros == middle).all():
            scales = np.maximum(-low, high) / (highest - middle)
        else:
            scales = (high - low) / (highest - lowest)
            starts = np.divide(low, scales, out=np.zeros_like(low), where=scales > 0)
            zeros = (lowest - np.rint(starts)).astype(np.int32).reshape(zeros.shape)
        scales = scales.astype(parts.scales.dtype)
        steps = np.broadcast_to(self._spread(scales.astype(np.float32), numbers.shape), numbers.shape)
        codes = np.rint(np.divide(numbers, steps, out=np.zeros_like(numbers), where=steps != 0))
        if zeros is not None:
            codes = codes + self._spread(zeros, numbers.shape)
        return Parts(codes.clip(lowest, highest).astype(np.int32), scales, zeros)

    def codes_of(self, values: Array, parts: Parts) -> Array:
        """Return the codes of numbers for given scales and zero points."""
        assert parts.scales is not None
        codes = np.rint(
            values.astype(np.float32) / self._spread(parts.scales.astype(np.float32), values.shape)
        )
        if parts.zeros is not None:
            codes = codes + self._spread(parts.zeros.astype(np.float32), values.shape)
        lowest = -(2 ** (self.bits - 1)) if self.is_signed else 0
        return np.asarray(codes.clip(lowest, lowest + 2**self.bits - 1).astype(np.int32))

    def _is_reduced(self, codes: Array) -> bool:
        """Whether codes of 8 bits use 7 bits, as with onnxruntime's option reduce_range: some processors need that."""
        if self.bits != 8:
            return False
        wide = codes.astype(np.int32)
        return bool(np.abs(wide).max(initial=0) <= 64 if self.is_signed else wide.max(initial=0) <= 127)


@dataclass(frozen=True)
class RoundedCoder:
    """Float numbers that a QuantizeLinear rounds to codes, as exports of quantization-aware training have them."""

    linear: LinearCoder

    @property
    def bits(self) -> int:
        """The number of bits of a code."""
        return self.linear.bits

    def _rounded(self, parts: Parts) -> Parts:
        return Parts(self.linear.codes_of(parts.codes, parts), parts.scales, parts.zeros)

    def decode(self, parts: Parts) -> Array:
        """Return the rounded matrix."""
        return self.linear.decode(self._rounded(parts))

    def obstacle(self, parts: Parts) -> str | None:
        """Return why a changed matrix cannot be stored in this form; None if it can."""
        return self.linear.obstacle(parts)

    def encode(self, values: Array, parts: Parts) -> Parts:
        """Return the numbers, with scales and zero points for them."""
        made = self.linear.encode(values, self._rounded(parts))
        return Parts(np.ascontiguousarray(values, dtype=parts.codes.dtype), made.scales, made.zeros)
