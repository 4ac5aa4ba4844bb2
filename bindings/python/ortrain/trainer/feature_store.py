"""Features of samples by the digests of the samples: in memory, or in a file that later runs read."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain._files.writing import appending, make_folder

Array = npt.NDArray[Any]

_DIGEST = 16  # bytes
_CHECKSUM = 4


@dataclass(frozen=True)
class FeatureCache:
    """Where a trainer stores the features that a frozen body computes.

    Parameters
    ----------
    folder : str or os.PathLike, optional
        A folder for files, one for each body, which later runs read. By default the features stay in memory.
    limit : int, default 1 GiB
        The maximum number of bytes of features in memory, or in a file. Features beyond this limit are computed in
        every epoch.
    """

    folder: str | os.PathLike[str] | None = None
    limit: int = 2**30

    def __post_init__(self) -> None:
        """Reject a limit below 0."""
        if self.limit < 0:
            raise ValueError(f"FeatureCache: expected a limit of 0 bytes or more, found {self.limit}")


def digests_of(columns: Sequence[Array], number: int = 0) -> list[bytes]:
    """Return a digest for each row of some arrays, which depends on types, shapes and values, and on a number."""
    head = "".join([f"{number}", *(f"{column.dtype.str}{column.shape[1:]}" for column in columns)]).encode()
    rows = [np.ascontiguousarray(column) for column in columns]
    found = []
    for number in range(len(rows[0])):
        digest = hashlib.blake2b(head, digest_size=_DIGEST)
        for column in rows:
            digest.update(column[number].tobytes() if column.ndim == 1 else column[number])
        found.append(digest.digest())
    return found


class FeatureStore:
    """Features by digest.

    Parameters
    ----------
    cache : FeatureCache
        The place and the limit.
    body : str
        The digest of what computes the features: the name of the file.
    """

    def __init__(self, cache: FeatureCache, body: str) -> None:
        self._limit = cache.limit
        self._path = None if cache.folder is None else Path(cache.folder) / f"{body}.features"
        self._file: io.FileIO | None = None
        self._rows: dict[bytes, tuple[Array, ...]] = {}
        self._places: dict[bytes, int] = {}
        self._form: list[tuple[np.dtype[Any], tuple[int, ...]]] = []
        self._end = 0
        self.bytes = 0
        """The bytes of features that are kept."""
        self.is_full = False
        """Whether features were not stored because of the limit, or because the file cannot grow."""
        self.failure: str | None = None
        """Why the file cannot grow, such as a full disk."""

    def __len__(self) -> int:
        return len(self._rows) + len(self._places)

    def open(self, features: Sequence[Array]) -> None:
        """Begin with the form of some features, and with those of the file that have it."""
        self._form = [(feature.dtype, feature.shape[1:]) for feature in features]
        if self._path is None:
            return
        make_folder(self._path.parent, "features")
        with appending(self._path, "features"):
            # Without a buffer, which would keep what the disk has no room for, and fail again when the file is closed.
            self._file = self._path.open("a+b", buffering=0)
        head = json.dumps([[dtype.str, list(shape)] for dtype, shape in self._form]).encode() + b"\n"
        self._file.seek(0)
        size = os.fstat(self._file.fileno()).st_size
        if self._file.read(len(head)) != head:  # the file is new, or has another format
            self._file.truncate(0)
            size = len(head) if self._append(head, 0) else 0
            if not size:
                self._limit = 0
                return
        records = (size - len(head)) // self._record_bytes
        self._end = len(head) + records * self._record_bytes
        self._file.truncate(self._end)  # a process may have ended while it wrote a record
        for number in range(records):
            place = len(head) + number * self._record_bytes
            self._places[self._read(_DIGEST, place)] = place
        self.bytes = records * self._row_bytes

    @property
    def _row_bytes(self) -> int:
        return sum(dtype.itemsize * int(np.prod(shape)) for dtype, shape in self._form)

    @property
    def _record_bytes(self) -> int:
        return _DIGEST + self._row_bytes + _CHECKSUM

    def _read(self, size: int, place: int) -> bytes:
        assert self._file is not None
        self._file.seek(place)
        return self._file.read(size)

    def get(self, digest: bytes) -> tuple[Array, ...] | None:
        """Return the features of a sample; None if they are not kept, or damaged."""
        row = self._rows.get(digest)
        if row is not None or self._file is None or digest not in self._places:
            return row
        record = self._read(self._record_bytes, self._places[digest])
        content = record[:-_CHECKSUM]
        if (
            record[:_DIGEST] != digest
            or zlib.crc32(content).to_bytes(_CHECKSUM, "little") != record[-_CHECKSUM:]
        ):
            del self._places[digest]
            return None
        arrays, start = [], _DIGEST
        for dtype, shape in self._form:
            array = np.frombuffer(content, dtype, int(np.prod(shape)), start).reshape(shape)
            arrays.append(array)
            start += array.nbytes
        return tuple(arrays)

    def put(self, digest: bytes, row: Sequence[Array]) -> None:
        """Keep the features of a sample if there is room."""
        if digest in self._rows or digest in self._places:
            return
        if self.bytes + self._row_bytes > self._limit:
            self.is_full = True
            return
        self.bytes += self._row_bytes
        if self._file is None:
            self._rows[digest] = tuple(np.array(feature) for feature in row)
            return
        content = digest + b"".join(np.ascontiguousarray(feature).tobytes() for feature in row)
        if self._append(content + zlib.crc32(content).to_bytes(_CHECKSUM, "little"), self._end):
            self._places[digest] = self._end
            self._end += self._record_bytes
        else:
            self.bytes -= self._row_bytes
            self._limit = 0
            self.is_full = True

    def _append(self, content: bytes, end: int) -> bool:
        """Write at the end of the file. Where there is no room, leave the file as it was, and return False."""
        assert self._file is not None
        try:
            if self._file.write(content) == len(content):
                return True
            self.failure = "the disk is full"
        except OSError as error:
            self.failure = error.strerror or str(error)
        self._file.truncate(end)
        return False

    def clear(self) -> None:
        """Forget all features, also those in the file."""
        self._rows.clear()
        self._places.clear()
        self.bytes = 0
        if self._file is not None:
            self._file.truncate(0)
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
