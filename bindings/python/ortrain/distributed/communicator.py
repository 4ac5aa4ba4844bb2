"""Communication over MPI that never waits forever: after a timeout, an error names the ranks that do not answer."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ortrain.errors import OrtrainError

Array = npt.NDArray[Any]
T = TypeVar("T")

DEFAULT_TIMEOUT = 300.0
"""Seconds after which a rank that does not answer counts as lost."""

_SPIN = 0.05
"""Seconds at the start of a wait in which pauses between tests are short."""
_HEADER = 16
"""Count of the numbers that describe an array before it is sent: its type, its number of dimensions and its shape."""
_LINGER = 1.0
"""Seconds for which a process that has found a lost rank stays alive, so that other ranks learn of it."""


class LostRankError(OrtrainError):
    """A rank ended, failed or did not answer.

    Attributes
    ----------
    ranks : tuple of int
        The ranks in question.
    """

    def __init__(self, message: str, ranks: tuple[int, ...]) -> None:
        super().__init__(message)
        self.ranks = ranks


def load_mpi() -> Any:
    """Return mpi4py's module, or say how to get it."""
    try:
        from mpi4py import MPI
    except ImportError as missing:
        raise OrtrainError(
            "training over several processes needs mpi4py and an MPI library; install ortrain[mpi]"
        ) from missing
    except RuntimeError as broken:  # mpi4py is installed, but no MPI library that it can load
        raise OrtrainError(f"mpi4py finds no MPI library; install ortrain[mpi]: {broken}") from broken
    return MPI


def _named(ranks: tuple[int, ...]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


class Communicator:
    """The processes that train together.

    A wait for other ranks ends after `timeout` seconds. While a rank waits, it sends small messages to the others
    beside the data. When the time is over, the error names the ranks that sent no message. A rank that fails or exits
    notifies the others, which stop at once.
    """

    def __init__(self, comm: Any = None, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Create a communicator; every rank of `comm` must do so.

        Parameters
        ----------
        comm : mpi4py.MPI.Comm, optional
            The processes; all by default.
        timeout : float, default 300
            Seconds after which a rank that does not answer counts as lost.
        """
        self.mpi = load_mpi()
        comm = self.mpi.COMM_WORLD if comm is None else comm
        if not timeout > 0:
            raise ValueError(f"timeout: expected more than 0 seconds, found {timeout}")
        self.timeout = float(timeout)
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self._beat = min(1.0, self.timeout / 8)
        self._heard = [time.monotonic()] * self.size
        self._ended: dict[int, float] = {}
        self._sent: list[Any] = []
        self._failure: LostRankError | None = None
        self._talk: Any = None
        self._data: Any = None
        self._answers: Any = None
        talk, request = comm.Idup()
        self.wait(request, "setting up the communication")
        self._talk = talk
        self._data, request = comm.Idup()
        self.wait(request, "setting up the communication")
        self._answers, request = comm.Idup()
        self.wait(request, "setting up the communication")
        atexit.register(self._leave)

    @property
    def data(self) -> Any:
        """The mpi4py communicator for data. Requests on it are passed to :meth:`wait`."""
        if self._failure is not None:
            raise self._failure
        return self._data

    @property
    def answers(self) -> Any:
        """A second communicator, for exchanges that follow from received data. Ranks start exchanges in one order on each."""
        if self._failure is not None:
            raise self._failure
        return self._answers

    # ---- waiting ----

    def wait(self, request: Any, doing: str) -> None:
        """Wait until a request of this communicator is complete.

        Raises
        ------
        LostRankError
            If another rank has failed or does not answer in time.
        """
        started = time.monotonic()
        beat = started + self._beat
        broken = ""
        while True:
            try:
                if not broken and request.Test():
                    return
            except self.mpi.Exception as error:  # the error does not name the rank at fault
                broken = str(error)
                self._notify(("alive",))
            now = time.monotonic()
            if now >= beat:
                beat = now + self._beat
                self._notify(("alive",))
            self._read(doing)
            # Messages that a rank sent before it ended still arrive.
            for rank, ended in self._ended.items():
                if now - max(started, ended) > 3 * self._beat:
                    self._fail(f"{doing}: rank {rank} has ended", (rank,))
            if now - started > (3 * self._beat if broken else self.timeout):
                self._lose(doing, started, broken)
            time.sleep(0 if now - started < _SPIN else 1e-4)

    def done(self, request: Any, doing: str) -> bool:
        """Return whether a request is complete, without waiting."""
        try:
            return bool(request.Test())
        except self.mpi.Exception:
            self.wait(request, doing)
            return True

    def _lose(self, doing: str, started: float, broken: str) -> None:
        silent = time.monotonic() - 2.5 * self._beat
        lost = tuple(r for r in range(self.size) if r != self.rank and self._heard[r] < silent)
        waited = f"within {time.monotonic() - started:.3g} s"
        if lost:
            message = f"{doing}: {_named(lost)} did not answer {waited}"
        else:
            message = f"{doing}: all ranks are waiting, but for different operations; they do not run the same steps"
        if broken:
            message += f" ({broken})"
        self._fail(message, lost)

    def _fail(self, message: str, ranks: tuple[int, ...]) -> None:
        self._failure = LostRankError(f"rank {self.rank}: {message}", ranks)
        self._notify(("lost", message, ranks))
        raise self._failure

    # ---- messages beside the data ----

    def _notify(self, message: tuple[Any, ...]) -> None:
        if self._talk is None:
            return
        self._sent = [request for request in self._sent if not self._complete(request)]
        for rank in range(self.size):
            if rank != self.rank:
                with contextlib.suppress(self.mpi.Exception):
                    self._sent.append(self._talk.isend(message, rank))

    def _complete(self, request: Any) -> bool:
        try:
            return bool(request.Test())
        except self.mpi.Exception:
            return True

    def _read(self, doing: str) -> None:
        """Read the messages of other ranks about failures and endings."""
        if self._talk is None:
            return
        with contextlib.suppress(self.mpi.Exception):
            while self._talk.iprobe():
                status = self.mpi.Status()
                message = self._talk.recv(source=self.mpi.ANY_SOURCE, status=status)
                source = status.Get_source()
                self._heard[source] = time.monotonic()
                if message[0] == "ended":
                    self._ended[source] = time.monotonic()
                if message[0] == "failed":
                    self._fail(f"{doing}: rank {source} failed: {message[1]}", (source,))
                if message[0] == "lost":
                    self._fail(message[1], message[2])

    def failed(self, error: BaseException) -> None:
        """Tell the other ranks that this one cannot continue. Later calls raise."""
        if self._failure is None:
            text = f"{type(error).__name__}: {error}"
            self._notify(("failed", text))
            self._failure = LostRankError(f"rank {self.rank}: this rank has failed: {text}", (self.rank,))

    def guarded(self, work: Callable[..., T], *arguments: Any) -> T:
        """Do work of this rank alone. If the code raises, the other ranks are notified."""
        try:
            return work(*arguments)
        except LostRankError:
            raise
        except BaseException as error:
            self.failed(error)
            raise

    def _leave(self) -> None:
        """Tell the other ranks that this process ends; do not call MPI_Finalize, which would wait for a lost rank forever."""
        if self.mpi.Is_finalized():
            return
        if self._failure is None:
            self._notify(("ended",))
            return
        end = time.monotonic() + _LINGER
        while time.monotonic() < end:  # MPI makes progress only while the program tests requests
            self._sent = [request for request in self._sent if not self._complete(request)]
            time.sleep(0.01)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    # ---- data ----

    def barrier(self, doing: str) -> None:
        """Wait until every rank is here."""
        self.wait(self.data.Ibarrier(), doing)

    def broadcast(self, array: Array, doing: str, root: int = 0) -> None:
        """Overwrite a contiguous array with the array of a rank."""
        self.wait(self.data.Ibcast([_bytes(array), self.mpi.BYTE], root), doing)

    def start_sum(self, array: Array) -> Any:
        """Start to overwrite a contiguous array of floats with the sum over the ranks; return the request."""
        return self.data.Iallreduce(self.mpi.IN_PLACE, array)

    def sum(self, array: Array, doing: str) -> Array:
        """Overwrite a contiguous array of floats with the sum over the ranks."""
        self.wait(self.start_sum(array), doing)
        return array

    def gather(self, value: Any, doing: str) -> list[Any]:
        """Return a small object of every rank, by rank."""
        data = np.frombuffer(pickle.dumps(value), np.uint8)
        sizes = np.zeros(self.size, np.int64)
        self.wait(self.data.Iallgather(np.array([data.size], np.int64), sizes), doing)
        out = np.empty(int(sizes.sum()), np.uint8)
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        self.wait(self.data.Iallgatherv(data, [out, sizes, starts, self.mpi.BYTE]), doing)
        parts = zip(starts, sizes, strict=True)
        return [pickle.loads(out[start : start + size].tobytes()) for start, size in parts]

    def start_send(self, array: Array, rank: int) -> list[Any]:
        """Start to send an array with its type and shape; return the requests."""
        array = np.ascontiguousarray(array)
        header = np.zeros(_HEADER, np.int64)
        header[0] = int.from_bytes(array.dtype.str.encode(), "little")
        header[1 : 2 + array.ndim] = [array.ndim, *array.shape]
        return [self.data.Isend(header, rank), self.data.Isend([_bytes(array), self.mpi.BYTE], rank)]

    def receive(self, rank: int, doing: str) -> Array:
        """Return the next array that a rank has sent."""
        header = np.zeros(_HEADER, np.int64)
        self.wait(self.data.Irecv(header, rank), doing)
        kind = int(header[0]).to_bytes(8, "little").rstrip(b"\0").decode()
        array = np.empty(tuple(header[2 : 2 + header[1]]), kind)
        self.wait(self.data.Irecv([_bytes(array), self.mpi.BYTE], rank), doing)
        return array

    def part(self, color: int) -> Communicator:
        """Divide the ranks by color and return the communicator of this rank's part. Every rank calls this."""
        self.barrier("dividing the ranks")
        return _Part(self, self.data.Split(color, self.rank))

    def expect_equal(self, value: Any, what: str) -> None:
        """Raise on every rank unless `value` is the same on all."""
        found = self.gather(value, f"comparing {what}")
        for rank, other in enumerate(found):
            if other != found[0]:
                raise OrtrainError(f"{what} differs: {found[0]} on rank 0, {other} on rank {rank}")


class _Part(Communicator):
    """Some of the ranks of a communicator. They wait for data and for messages about failures on the whole communicator."""

    def __init__(self, root: Communicator, comm: Any) -> None:
        self.mpi = root.mpi
        self.timeout = root.timeout
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()
        self._root = root
        self._own = comm
        self._own_answers = comm.Dup()

    @property
    def data(self) -> Any:
        """The mpi4py communicator for data."""
        return self._own if self._root.data is not None else None

    @property
    def answers(self) -> Any:
        """A second mpi4py communicator, for messages that answer data."""
        return self._own_answers if self._root.data is not None else None

    def wait(self, request: Any, doing: str) -> None:
        """Wait until a request of this communicator is complete."""
        self._root.wait(request, doing)

    def done(self, request: Any, doing: str) -> bool:
        """Return whether a request is complete, without waiting."""
        return self._root.done(request, doing)

    def failed(self, error: BaseException) -> None:
        """Tell all ranks that this rank cannot continue."""
        self._root.failed(error)


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)
