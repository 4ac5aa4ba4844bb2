"""Sums of float arrays over ranks, in pieces, with float32 or bfloat16 on the wire."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain.distributed.communicator import Communicator

Array = npt.NDArray[Any]

WIRES = ("float32", "bfloat16")

DOING = "all-reduce of the gradients"


def to_bfloat16(values: Array) -> npt.NDArray[np.uint16]:
    """Return float32 values rounded to bfloat16, to the nearest and to even, as their upper 16 bits."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    nan = np.isnan(values)
    if nan.any():  # rounding could carry a NaN over to infinity or zero
        rounded[nan] = 0x7FC0
    halves: npt.NDArray[np.uint16] = rounded.astype(np.uint16)
    return halves


def from_bfloat16(halves: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Return float32 values from the upper 16 bits of each."""
    values: npt.NDArray[np.float32] = (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values


def _added(halves: npt.NDArray[np.uint16], ranks: int) -> npt.NDArray[np.float32]:
    """Return the sum of what so many ranks have sent, in their order."""
    shares = from_bfloat16(halves).reshape(ranks, -1)
    total: npt.NDArray[np.float32] = shares[0].copy()
    for other in shares[1:]:
        total += other
    return total


class _Sum:
    """A sum that MPI computes."""

    def __init__(self, ranks: Communicator, part: Array) -> None:
        self._ranks = ranks
        self._request = ranks.start_sum(part)

    def poll(self) -> bool:
        """Return whether the sum is there, and start what follows from what has arrived."""
        return self._ranks.done(self._request, DOING)

    def progress(self) -> None:
        """Let the exchange that is under way make progress."""
        self._ranks.done(self._request, DOING)

    def wait(self) -> None:
        """Wait for the exchange that is under way."""
        self._ranks.wait(self._request, DOING)


class _SumInHalves(_Sum):
    """A sum of which every rank computes a share in float32.

    Each rank sends each other rank its share in bfloat16, adds up what it gets in the order of ranks, and sends the sum
    to all in bfloat16. So a value is rounded twice, however many ranks there are.
    """

    def __init__(self, ranks: Communicator, part: Array) -> None:
        self._ranks, self._part = ranks, part
        share = -(-part.size // ranks.size)
        self._all = np.zeros(share * ranks.size, np.uint16)
        self._all[: part.size] = to_bfloat16(part)
        self._received = np.empty_like(self._all)
        self._total: npt.NDArray[np.uint16] | None = None
        self._request = ranks.data.Ialltoall(self._all, self._received)

    def poll(self) -> bool:
        if not self._ranks.done(self._request, DOING):
            return False
        if self._total is not None:
            self._part[:] = from_bfloat16(self._all)[: self._part.size]
            return True
        self._total = to_bfloat16(_added(self._received, self._ranks.size))
        self._request = self._ranks.answers.Iallgather(self._total, self._all)
        return False


class Reduction:
    """Sums of arrays over all ranks, several at a time.

    All ranks must start sums of the same sizes in the same order.
    """

    def __init__(self, ranks: Communicator, wire: str) -> None:
        if wire not in WIRES:
            raise ValueError(f"wire: expected one of {', '.join(WIRES)}, found {wire!r}")
        self._ranks = ranks
        self._wire = wire
        self._sums: list[_Sum] = []

    def start(self, part: Array) -> None:
        """Start to overwrite a contiguous part of an array with its sum."""
        if part.size > 0:
            self._sums.append((_SumInHalves if self._in_halves(part) else _Sum)(self._ranks, part))

    def bytes_of(self, values: Array) -> int:
        """Return how many bytes an array takes on the wire."""
        return values.size * 2 if self._in_halves(values) else values.nbytes

    def _in_halves(self, values: Array) -> bool:
        return self._wire == "bfloat16" and values.dtype == np.float32

    def share(self, values: Array) -> Array:
        """Return the sum of this rank's share of `values`, of which all ranks have equal shares; overwrite `values`."""
        if self._in_halves(values):
            received = np.empty(values.size, np.uint16)
            self._ranks.wait(self._ranks.data.Ialltoall(to_bfloat16(values), received), DOING)
            return _added(received, self._ranks.size)
        in_place = self._ranks.mpi.IN_PLACE
        self._ranks.wait(self._ranks.data.Ireduce_scatter_block(in_place, values), DOING)
        own: Array = values[: values.size // self._ranks.size].copy()
        return own

    def poll(self) -> None:
        """Let what was started make progress."""
        while self._sums and self._sums[0].poll():  # in order, so that all ranks answer in the same
            self._sums.pop(0)
        for later in self._sums[1:]:
            later.progress()

    def finish(self) -> None:
        """Wait until everything that was started is complete."""
        while self._sums:
            self._sums[0].wait()
            self.poll()


class Chunks:
    """The parts in which a buffer of gradients is sent, the same on all ranks, and from its end on.

    A backward pass reaches the last parameters first. Ranks with other kernels may complete gradients in another order,
    so a part is sent when it and all parts before it in the list are complete.
    """

    def __init__(self, counts: Sequence[int], least: int) -> None:
        """Divide a buffer of gradients with so many elements each into parts of `least` elements or more."""
        self.parts: list[slice] = []
        self._part_of: dict[int, int] = {}
        end = start = sum(counts)
        for count in reversed(counts):
            start -= count
            if count:
                self._part_of[start] = len(self.parts)
            if end - start >= least or start == 0:
                self.parts.append(slice(start, end))
                end = start
        self._left: list[int] = []
        self._next = 0

    def restart(self) -> None:
        """Take nothing as complete."""
        self._left = [part.stop - part.start for part in self.parts]
        self._next = 0

    def completed(self, first: int, count: int) -> Iterator[slice]:
        """Take note of a complete gradient and yield the parts that can be sent now."""
        if count:
            self._left[self._part_of[first]] -= count
        while self._next < len(self.parts) and self._left[self._next] == 0:
            yield self.parts[self._next]
            self._next += 1
