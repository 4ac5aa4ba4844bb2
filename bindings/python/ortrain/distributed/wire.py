"""Sums of float arrays over ranks, in pieces, with float32 or bfloat16 on the wire."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain import _ortrain
from ortrain._ortrain import OrtValue
from ortrain.distributed.communicator import Communicator

Array = npt.NDArray[Any]

WIRES = ("float32", "bfloat16")

DOING = "all-reduce of the gradients"

_BFLOAT16 = 16
"""ONNX's number of the type."""


Halves = npt.NDArray[np.uint16]


def _as_value(halves: Halves) -> OrtValue:
    return OrtValue.ortvalue_from_numpy_with_onnx_type(halves, _BFLOAT16)


def narrow(values: npt.NDArray[np.float32], halves: Halves) -> None:
    """Write float32 values as bfloat16, rounded to the nearest and to even, into an array of their upper 16 bits."""
    _ortrain.convert_floats(OrtValue.ortvalue_from_numpy(values), _as_value(halves))


def widen(halves: Halves, values: npt.NDArray[np.float32]) -> None:
    """Write values given by their upper 16 bits as float32."""
    _ortrain.convert_floats(_as_value(halves), OrtValue.ortvalue_from_numpy(values))


class _Room:
    """Memory for a sum in bfloat16. The next sum of the same size uses it again."""

    def __init__(self, count: int, ranks: int) -> None:
        share = -(-count // ranks)
        self.all = np.zeros(share * ranks, np.uint16)
        self.received = np.empty_like(self.all)
        self.own = np.empty(share, np.uint16)
        self._total = np.empty(share, np.float32)
        self._other = np.empty_like(self._total)

    def added(self) -> npt.NDArray[np.float32]:
        """Return the sum of the shares that ranks have sent, added in the order of ranks."""
        first, *others = self.received.reshape(-1, self.own.size)
        widen(first, self._total)
        for other in others:
            widen(other, self._other)
            self._total += self._other
        return self._total


class _Sum:
    """A sum that MPI computes."""

    def __init__(self, ranks: Communicator, part: Array) -> None:
        self._ranks = ranks
        self._request = ranks.start_sum(part)

    def poll(self) -> bool:
        """Return whether the sum is complete, and start the next steps for parts that have arrived."""
        return self._ranks.done(self._request, DOING)

    def progress(self) -> None:
        """Test the requests of the current exchange, so that MPI makes progress."""
        self._ranks.done(self._request, DOING)

    def wait(self) -> None:
        """Wait for the current exchange."""
        self._ranks.wait(self._request, DOING)


class _SumInHalves(_Sum):
    """A sum of which every rank computes a share in float32.

    Each rank sends every other rank the part of its gradients that this other rank adds up, in bfloat16. It adds the parts that
    it receives in the order of ranks, and sends the sum to all ranks in bfloat16. So a value is rounded twice, however many
    ranks there are.
    """

    def __init__(self, ranks: Communicator, part: Array, rooms: dict[int, list[_Room]]) -> None:
        self._ranks, self._part = ranks, part
        self._rooms = rooms.setdefault(part.size, [])
        self._room = self._rooms.pop() if self._rooms else _Room(part.size, ranks.size)
        narrow(part, self._room.all[: part.size])
        self._answers = False
        self._request = ranks.data.Ialltoall(self._room.all, self._room.received)

    def poll(self) -> bool:
        if not self._ranks.done(self._request, DOING):
            return False
        room = self._room
        if self._answers:
            widen(room.all[: self._part.size], self._part)
            self._rooms.append(room)
            return True
        narrow(room.added(), room.own)
        self._answers = True
        self._request = self._ranks.answers.Iallgather(room.own, room.all)
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
        self._rooms: dict[int, list[_Room]] = {}

    def start(self, part: Array) -> None:
        """Start to overwrite a contiguous part of an array with its sum."""
        if part.size > 0:
            in_halves = self._in_halves(part)
            self._sums.append(
                _SumInHalves(self._ranks, part, self._rooms) if in_halves else _Sum(self._ranks, part)
            )

    def bytes_of(self, values: Array) -> int:
        """Return how many bytes an array takes on the wire."""
        return values.size * 2 if self._in_halves(values) else values.nbytes

    def _in_halves(self, values: Array) -> bool:
        return self._wire == "bfloat16" and values.dtype == np.float32

    def share(self, values: Array) -> Array:
        """Return the sum of this rank's share of `values`, of which all ranks have equal shares; overwrite `values`."""
        if self._in_halves(values):
            rooms = self._rooms.setdefault(values.size, [])
            room = rooms.pop() if rooms else _Room(values.size, self._ranks.size)
            rooms.append(room)
            narrow(values, room.all)
            self._ranks.wait(self._ranks.data.Ialltoall(room.all, room.received), DOING)
            return room.added()
        in_place = self._ranks.mpi.IN_PLACE
        self._ranks.wait(self._ranks.data.Ireduce_scatter_block(in_place, values), DOING)
        own: Array = values[: values.size // self._ranks.size].copy()
        return own

    def poll(self) -> None:
        """Let what was started make progress."""
        while self._sums and self._sums[0].poll():  # in order, so that all ranks answer in the same order
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
        """Divide a buffer of gradients, given the elements of each, into parts of `least` elements or more."""
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
