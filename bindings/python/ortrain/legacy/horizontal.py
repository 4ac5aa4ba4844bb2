"""A TrainingSession with divided layers: each process computes a part of every layer.

M. Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using model parallelism", 2019.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain import _ortrain
from ortrain._ortrain import OrtValue
from ortrain._support.checks import invalid
from ortrain._support.counts import counted
from ortrain.api.generated.run_options import RunOptions
from ortrain.distributed.communicator import Communicator
from ortrain.errors import OrtrainError
from ortrain.legacy.joining import Job
from ortrain.legacy.shared_training import (
    GATHERING,
    MOMENTS,
    UPDATED,
    SharedTraining,
    StatePart,
    norm_of,
)

Array = npt.NDArray[Any]

_DOING = "sum over the ranks that share a layer"


@dataclass(frozen=True)
class Partition:
    """How an array is divided: the lengths of sections repeat along an axis, and every rank has an equal part of each section."""

    shape: tuple[int, ...]
    """The shape of the whole array."""
    rows: bool
    axis: int
    sections: tuple[int, ...]

    def _places(self, ranks: int, rank: int) -> Array:
        starts = np.arange(0, self.shape[self.axis], sum(self.sections))
        offsets = np.cumsum([0, *self.sections[:-1]])
        parts = [
            np.arange(length // ranks) + offset + rank * (length // ranks)
            for offset, length in zip(offsets, self.sections, strict=True)
        ]
        places: Array = (starts[:, None] + np.concatenate(parts)[None, :]).ravel()
        return places

    def part(self, whole: Array, ranks: int, rank: int) -> Array:
        """Return the part of a rank."""
        return np.take(whole.reshape(self.shape), self._places(ranks, rank), self.axis)

    def join(self, parts: Sequence[Array]) -> Array:
        """Return the whole from the parts of all ranks."""
        whole = np.empty(self.shape, parts[0].dtype)
        at: list[Any] = [slice(None)] * len(self.shape)
        for rank, part in enumerate(parts):
            at[self.axis] = self._places(len(parts), rank)
            whole[tuple(at)] = part
        return whole


def partitions(session: _ortrain.SessionHandle) -> dict[str, Partition]:
    """Return how the weights of a session are divided, by name; whole ones are left out."""
    found = {}
    for i in range(_ortrain.session_get_state_count(session)):
        numbers = _ortrain.session_get_state_division(session, i).numpy().tolist()
        if numbers and _ortrain.session_get_state_role(session, i) == "weight":
            shape = _ortrain.session_get_state_whole_shape(session, i).numpy().tolist()
            weight = _ortrain.session_get_state_weight(session, i)
            found[weight] = Partition(tuple(shape), bool(numbers[0]), numbers[1], tuple(numbers[2:]))
    return found


class HorizontalTraining(SharedTraining):
    """The runs of a session that has a part of the layers.

    Ranks that share layers are fed the same batch. All of them compute the undivided values, with the same results.
    """

    def _divide(self, job: Job) -> Communicator:
        self._width = job.parameters.horizontal_parallel_size
        self._place = job.ranks.rank % self._width
        self._layer = job.ranks.part(job.ranks.rank // self._width)
        self._partitions = partitions(job.handle)
        self._compared: set[tuple[str, ...]] = set()
        return job.ranks.part(self._place)

    @property
    def _draw(self) -> int:
        """The number that selects this rank's random numbers.

        Ranks that share layers draw the same numbers, except in nodes of which each has a part.
        """
        return self.world.rank // self._width

    def _execute(
        self,
        options: RunOptions,
        values: Mapping[str, OrtValue],
        fetches: Sequence[str],
        given: Sequence[OrtValue | None],
    ) -> list[OrtValue]:
        if UPDATED not in fetches:
            self._expect_same(values)
        # If ranks added up different values, the results would be wrong without an error.
        compares = tuple(fetches) not in self._compared

        def add_up(array: Array, name: str) -> None:
            if compares:
                self._compare_sum(name, array.size)
            self._layer.sum(array, _DOING)

        summing = _ortrain.RankSum(options._handle, add_up)
        try:
            found = super()._execute(options, values, fetches, given)
        finally:
            summing.check()
        if compares:
            self._compare_sum("the end of the run", 0)
            self._compared.add(tuple(fetches))
        return found

    def _compare_sum(self, name: str, size: int) -> None:
        """Raise an error unless all ranks that share layers are about to add up the same value."""
        found = self._layer.gather((name, size), _DOING)
        if found.count(found[0]) < len(found):
            first = self.world.rank - self._place
            each = ", ".join(
                f"{other!r} ({counted(n, 'element')}) on rank {first + r}"
                for r, (other, n) in enumerate(found)
            )
            raise OrtrainError(
                f"{_DOING}: expected the same values on all of them, found {each}; they need the same model, the same "
                f"options and the same version of ortrain"
            )

    def _expect_same(self, values: Mapping[str, OrtValue]) -> None:
        """Raise an error unless all ranks that share layers got the same inputs."""
        digest = 0
        for name in sorted(values):
            array = np.ascontiguousarray(values[name].numpy())
            if array.dtype != object:
                digest = zlib.crc32(array.reshape(-1).view(np.uint8).data, digest)
        if self._layer.sum(np.array([float(digest)]), _DOING)[0] != float(digest) * self._width:
            first = self.world.rank - self._place
            raise invalid(
                f"ranks {first} to {first + self._width - 1} share layers and were fed different values; "
                f"expected the same batch on all of them"
            )

    def _squares(self, gradients: Array, first: int = 0) -> float:
        """Return the sum of the squares. Each rank has some weights whole, and parts of others."""
        whole, divided, at = 0.0, np.zeros(1), -first
        for weight, count in zip(self.weights, self._counts, strict=True):
            squares = norm_of(gradients[max(at, 0) : max(at + count, 0)])
            if self._whole_weight[weight] in self._partitions:
                divided += squares
            else:
                whole += squares
            at += count
        return whole + float(self._layer.sum(divided, _DOING)[0])

    # ---- state ----

    def partition(self) -> dict[str, dict[str, list[int]]]:
        """Return the shapes of the weights of which this rank has a part, and whether it is columns or rows."""
        divided = {
            weight: {"original_dim": list(d.shape), "megatron_row_partition": [int(d.rows)]}
            for weight, d in self._partitions.items()
        }
        return dict(sorted({**super().partition(), **divided}.items()))

    def _whole_name(self, name: str, role: str, weight: str) -> str:
        if role in (*MOMENTS, "Update_Count"):
            return f"{role}_{weight}"
        if role == "mixed_precision":
            return f"{weight}_fp16"
        return weight if role == "weight" else name

    def _whole_shape(self, weight: str) -> tuple[int, ...]:
        partition = self._partitions.get(self._whole_weight[weight])
        return super()._whole_shape(weight) if partition is None else partition.shape

    def _own_part(self, weight: str, array: Array) -> Array:
        partition = self._partitions.get(self._whole_weight[weight])
        return array if partition is None else partition.part(array, self._width, self._place)

    def _merged(self, own: dict[str, StatePart]) -> dict[str, StatePart]:
        named = {self._whole_name(name, part.role, part.weight): part for name, part in own.items()}
        found = self._layer.gather(named, GATHERING)
        result = {}
        for name, part in found[0].items():
            partition = self._partitions.get(part.weight)
            if partition is not None and part.role != "Update_Count":
                part = StatePart(
                    part.role, part.weight, partition.join([parts[name].value for parts in found])
                )
            result[name] = part
        return result
