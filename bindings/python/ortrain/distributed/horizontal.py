"""What a TrainingSession does where several processes compute parts of the same layers.

M. Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using model parallelism", 2019.
"""

from __future__ import annotations

import hashlib
import pathlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain import _ortrain
from ortrain._ortrain import OrtValue
from ortrain.api.generated.run_options import RunOptions
from ortrain.api.generated.training_parameters import TrainingParameters
from ortrain.distributed.communicator import Communicator
from ortrain.distributed.training import RANDOM, SharedTraining, invalid, norm_of
from ortrain.options import SessionOptions

Array = npt.NDArray[Any]

_DOING = "sum over the ranks that share a layer"


@dataclass(frozen=True)
class Division:
    """How an array is divided: of each section of an axis, which repeat until its end, every rank has an equal part."""

    shape: tuple[int, ...]
    """Of the whole."""
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


def divisions(session: _ortrain.SessionHandle) -> dict[str, Division]:
    """Return how the states of a session are divided, by name; whole ones are left out."""
    found = {}
    for i in range(_ortrain.session_get_state_count(session)):
        numbers = _ortrain.session_get_state_division(session, i).numpy().tolist()
        if numbers:
            shape = _ortrain.session_get_state_whole_shape(session, i).numpy().tolist()
            name = _ortrain.session_get_state_name(session, i)
            found[name] = Division(tuple(shape), bool(numbers[0]), numbers[1], tuple(numbers[2:]))
    return found


def expect_same_model(ranks: Communicator, path_or_bytes: str | bytes) -> None:
    """Raise on every rank unless all have the same model: parts of different ones make no whole."""
    data = path_or_bytes if isinstance(path_or_bytes, bytes) else pathlib.Path(path_or_bytes).read_bytes()
    ranks.expect_equal(hashlib.sha256(data).hexdigest(), "the model, by its SHA-256,")


class HorizontalTraining(SharedTraining):
    """The runs of a session that has a part of the layers.

    Ranks that share layers are fed the same batch. What is not divided they compute all, with the same results.
    """

    def __init__(
        self,
        handle: _ortrain.SessionHandle,
        ranks: Communicator,
        parameters: TrainingParameters,
        options: SessionOptions,
    ) -> None:
        self._width = parameters.horizontal_parallel_size
        self._place = ranks.rank % self._width
        self._layer = ranks.part(ranks.rank // self._width)
        self._divisions = divisions(handle)
        super().__init__(handle, ranks, parameters, options)

    def _data_ranks(self, parameters: TrainingParameters) -> Communicator:
        return self.world.part(self._place)

    def _local_weights(self, states: Sequence[tuple[str, str, str]]) -> list[str]:
        return sorted(name for name, role, _ in states if role == "weight")

    @property
    def _draw(self) -> int:
        """Ranks that share layers draw the same, apart from nodes of which each has a part."""
        return self.world.rank // self._width

    def _core_run(
        self,
        fetches: Sequence[str],
        values: Mapping[str, OrtValue],
        options: RunOptions,
        places: Mapping[str, OrtValue],
    ) -> list[OrtValue]:
        self._expect_same(values)
        summing = _ortrain.RankSum(options._handle, lambda array: self._layer.sum(array, _DOING))
        try:
            return super()._core_run(fetches, values, options, places)
        finally:
            summing.check()

    def _expect_same(self, values: Mapping[str, OrtValue]) -> None:
        """Raise unless all ranks that share layers are fed the same."""
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

    def _squares(self, gradients: Array) -> float:
        """Return the sum of the squares of all gradients, where each rank has some whole and parts of others."""
        whole, divided, at = 0.0, np.zeros(1), 0
        for weight, count in zip(self.weights, self._counts, strict=True):
            squares = norm_of(gradients[at : at + count])
            if weight in self._divisions:
                divided += squares
            else:
                whole += squares
            at += count
        return whole + float(self._layer.sum(divided, _DOING)[0])

    # ---- state ----

    def partition(self) -> dict[str, dict[str, list[int]]]:
        """Return the shapes of the weights of which this rank has a part, and whether it is columns or rows."""
        return {
            weight: {
                "original_dim": list(self._divisions[name].shape),
                "megatron_row_partition": [int(self._divisions[name].rows)],
            }
            for name, role, weight in self._states()
            if role == "weight" and name in self._divisions
        }

    def _whole_name(self, name: str, role: str, weight: str) -> str:
        if role in ("Moment_1", "Moment_2", "Update_Count"):
            return f"{role}_{weight}"
        if role == "mixed_precision":
            return f"{weight}_fp16"
        return weight if role == "weight" else name

    def model_state_name(self, name: str, role: str, weight: str) -> str:
        """Return the name under which a state is part of the state of the model."""
        return self._whole_name(name, role, weight)

    def gather_state(self) -> dict[str, Array]:
        """Return the state that one process would have; every rank calls this."""
        own = {
            self._whole_name(name, role, weight): (
                _ortrain.session_get_state(self._handle, name).numpy(),
                self._divisions.get(name),
            )
            for name, role, weight in self._states()
        }
        found = self._layer.gather(own, "gathering the state")
        result = {}
        for name, (value, division) in found[0].items():
            if division is not None:
                value = division.join([parts[name][0] for parts in found])
            result[name] = value
        if RANDOM in result:
            result[RANDOM] = np.array(self.random_state())
        return dict(sorted(result.items()))

    def localized(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return what this rank keeps of a state of one process, under the names that it has here."""
        here = {
            self._whole_name(name, role, weight): name
            for name, role, weight in self._states()
            if self._whole_name(name, role, weight) != name
        }
        result: dict[str, Any] = {}
        for name, value in state.items():
            own = here.get(name, name)
            if name == RANDOM:
                seed, number = map(int, value.numpy() if isinstance(value, OrtValue) else value)
                result[name] = self._drawing(seed, number)
            elif (division := self._divisions.get(own)) is not None and own != name:
                array = value.numpy() if isinstance(value, OrtValue) else np.asarray(value)
                if array.size != np.prod(division.shape):
                    raise invalid(
                        f"load_state: Tensor size mismatch: {name!r} has shape {division.shape}, found {array.shape}"
                    )
                result[own] = division.part(array, self._width, self._place)
            else:
                result[own] = value
        return result
