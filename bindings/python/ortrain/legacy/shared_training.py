"""The work of a TrainingSession, besides running its graph, when several processes train."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain import _ortrain
from ortrain._ortrain import OrtValue
from ortrain._support.checks import invalid
from ortrain._support.signatures import ModelSignature
from ortrain._support.values import to_writable
from ortrain.api.generated.node_arg import NodeArg
from ortrain.api.generated.run_options import RunOptions
from ortrain.distributed.communicator import Communicator
from ortrain.distributed.exchange import GradientExchange, GradientSource, samples_of
from ortrain.distributed.wire import DOING
from ortrain.legacy.adasum import adasum
from ortrain.legacy.joining import Job, gradient_type
from ortrain.legacy.states import session_states

Array = npt.NDArray[Any]

ACCUMULATED, UPDATED = "Group_Accumulated_Gradients", "Group_Updated_Weights"
NORM, FINITE = "global_gradient_norm", "all_gradients_finite"
RANDOM = "Random_State"
CHUNK_BYTES = 1 << 20
_WHOLE, MOMENTS = ("weight", "mixed_precision"), ("Moment_1", "Moment_2")
"""Roles of states. With ZeRO, every rank has the first ones completely, and its share of the second ones."""
GATHERING = "gathering the state"
_RUNS = 1 << 40
"""A number above the number of runs of any session."""
_BLOCK = 1 << 16


def placed(array: Array, place: OrtValue | None) -> OrtValue:
    """Return an output with these values, in the tensor that it is to be written into if there is one."""
    if place is None:
        return OrtValue.ortvalue_from_numpy(array)
    place.update_inplace(array)
    return place


def norm_of(gradients: Array) -> float:
    """Return the sum of the squares, in double precision."""
    blocks = (gradients[i : i + _BLOCK].astype(np.float64) for i in range(0, gradients.size, _BLOCK))
    return float(sum(block @ block for block in blocks))


@dataclass(frozen=True)
class StatePart:
    """A state as a process has it: what it is, the weight in one process that it belongs to, and its value."""

    role: str
    weight: str
    value: Array


class SharedTraining:
    """The runs of a session whose batch several processes share.

    The graph of such a session has two parts: one adds up gradients, the other updates weights. Between them, gradients
    are averaged over the ranks.
    """

    _micro = 1
    """Runs of the graph that make up one train step."""
    _is_cut = False
    """Whether the graph is one stage of a pipeline."""

    def __init__(self, job: Job) -> None:
        parameters = job.parameters
        self.world = job.ranks
        self._handle = handle = job.handle
        self.ranks = self._divide(job)
        """The ranks that have the same weights."""
        self._graph_inputs = {entry.name for entry in job.inputs}
        self._accumulated = max(1, parameters.gradient_accumulation_steps)
        self._optimizer = parameters.training_optimizer_name
        self._rate = parameters.lr_params_feed_name
        self._scale = _ortrain.session_get_loss_scale_input_name(handle)
        self._clips = parameters.enable_grad_norm_clip
        self._adasum = parameters.enable_adasum
        self._divided = parameters.deepspeed_zero_stage != 0 and parameters.data_parallel_size > 1
        states = self._states()
        self._draws = any(name == RANDOM for name, _, _ in states)
        self._whole_weight = {
            self._without_share(name, weight): weight for name, role, weight in states if role == "weight"
        }
        self.weights = sorted(self._whole_weight)
        """The weights that this process computes with, in the order of buffers."""
        values = [_ortrain.session_get_state(handle, weight).numpy() for weight in self.weights]
        self.shapes = {weight: value.shape for weight, value in zip(self.weights, values, strict=True)}
        self._counts = [value.size for value in values]
        if len({value.dtype for value in values}) > 1:
            raise invalid("several processes: expected weights of one type, found " + ", ".join(
                sorted({str(value.dtype) for value in values})))  # fmt: skip
        described = []
        for weight, shape in self.shapes.items():
            whole = self._whole_weight[weight]
            attributes = parameters.optimizer_attributes_map, parameters.optimizer_int_attributes_map
            described.append((whole, shape, [each.get(whole) for each in attributes]))
        self.ranks.expect_equal(described, "the list of trained weights and their attributes")
        # With ZeRO, all weights together are divided into shares of equal length, one for each rank; the last shares are padded.
        unit = self.ranks.size * 32
        self._share = -(-sum(self._counts) // unit) * unit // self.ranks.size
        self._exchange = GradientExchange(
            self.ranks,
            GradientSource(self._read_gradients, self._reset_gradients),
            self._counts,
            values[0].dtype,
            gradient_type(job.options),
            CHUNK_BYTES,
            self._share * self.ranks.size if self._divided else 0,
        )
        self._path = RunOptions()
        self._path.only_execute_path_to_fetches = True
        self._share_weights()
        drawn = self.world.gather(self.random_state(), "comparing what is drawn")
        if self._draws:  # take over the seed of rank 0, or of the first rank that draws
            self.set_random_state(*next(state for state in drawn if state is not None))

    def _divide(self, job: Job) -> Communicator:
        """Find the position of this process, and return the ranks that have the same weights."""
        return self.world

    def _states(self) -> list[tuple[str, str, str]]:
        return session_states(self._handle)

    def _share_weights(self) -> None:
        """Copy the weights of rank 0 to all ranks."""
        values = np.empty_like(self._exchange.buffer)
        self._copy_out("weight", values)
        self.ranks.broadcast(values, "sending the weights")
        self._copy_in("weight", values)

    # Ranks must draw different random numbers. So the number of a run, from which random numbers follow, begins with the rank.

    def random_state(self) -> tuple[int, int] | None:
        """Return the seed and the number of the next run, without the rank; None if nothing is drawn."""
        if not self._draws:
            return None
        seed, number = map(int, _ortrain.session_get_state(self._handle, RANDOM).numpy())
        return seed, number % _RUNS

    def set_random_state(self, seed: int, number: int) -> None:
        """Set the seed and the number of the next run."""
        state = self._drawing(seed, number)
        _ortrain.session_set_state(self._handle, RANDOM, OrtValue.ortvalue_from_numpy(state))

    @property
    def _draw(self) -> int:
        """The number that makes the random numbers of this rank differ from those of other ranks."""
        return self.world.rank

    def _drawing(self, seed: int, number: int) -> Array:
        return np.array([seed, number % _RUNS + self._draw * _RUNS])

    def _copy_out(self, role: str, values: Array) -> None:
        _ortrain.session_copy_states_to_buffer(self._handle, role, to_writable(values))

    def _copy_in(self, role: str, values: Array) -> None:
        _ortrain.session_copy_buffer_to_states(self._handle, role, to_writable(values))

    def _read_gradients(self, buffer: Array) -> None:
        self._copy_out("gradient", buffer)

    def _reset_gradients(self) -> None:
        self._copy_in("gradient", np.zeros_like(self._exchange.buffer))

    # ---- what a caller sees ----

    @property
    def hidden_inputs(self) -> set[str]:
        """Inputs of the graph that are not the caller's."""
        return {NORM}

    def outputs(self, made: Sequence[str]) -> list[str]:
        """Return the outputs that a caller sees, from those of the graph."""
        names = [name for name in made if name != UPDATED and (name != ACCUMULATED or self._accumulated > 1)]
        if self._optimizer and (self._clips or self._scale):
            names.append(NORM)
        if self._optimizer and self._scale:
            names.append(FINITE)
        return names

    def visible_inputs(self, own: Sequence[NodeArg]) -> list[NodeArg]:
        """Return the inputs that a caller sees, from those of the graph."""
        return [entry for entry in own if entry.name not in self.hidden_inputs]

    def visible_outputs(self, own: Sequence[NodeArg]) -> list[NodeArg]:
        """Return the outputs that a caller sees, from those of the graph."""
        entries = {entry.name: entry for entry in own}
        for name, kind in ((NORM, "tensor(float)"), (FINITE, "tensor(bool)")):
            entries[name] = NodeArg(name, kind, [])
        return [entries[name] for name in self.outputs([entry.name for entry in own])]

    def take(self, signature: ModelSignature, feed: Mapping[str, Any]) -> dict[str, OrtValue]:
        """Return the inputs of a run by name."""
        return signature.take(feed)

    # ---- runs ----

    def run(
        self,
        wanted: Sequence[str],
        values: Mapping[str, OrtValue],
        options: RunOptions | None,
        given: Sequence[OrtValue | None],
    ) -> list[OrtValue]:
        """Run the graph for outputs, some of which may have tensors to be written into."""
        return self.world.guarded(self._run, wanted, values, options, given)

    def _run(
        self,
        wanted: Sequence[str],
        values: Mapping[str, OrtValue],
        options: RunOptions | None,
        given: Sequence[OrtValue | None],
    ) -> list[OrtValue]:
        places = {name: place for name, place in zip(wanted, given, strict=True) if place is not None}
        fetches = [name for name in wanted if name not in (NORM, FINITE)]
        training_mode = options.training_mode if options is not None else True
        if options is not None and options.only_execute_path_to_fetches:
            if len(fetches) < len(wanted):
                raise invalid(
                    f"only_execute_path_to_fetches: {NORM} and {FINITE} depend on all processes, so only runs of the whole graph "
                    "compute them"
                )
            if ACCUMULATED not in fetches:
                return self._core_run(fetches, values, options, places)
            work = self._forward(fetches, values, training_mode, places)
            found_so_far: list[OrtValue] = self._exchange.run(work, self._samples(values), False, self._micro)
            return found_so_far
        if not self._optimizer:
            work = self._forward(fetches, values, training_mode, places)
            return work(None)
        extra = fetches if ACCUMULATED in fetches else [*fetches, ACCUMULATED]
        sends = not self._adasum and not self._divided and self._micro == 1 and not self._is_cut
        work = self._forward(extra, values, training_mode, places)
        made = self._exchange.run(work, self._samples(values), sends, self._micro)
        found = dict(zip(extra, made, strict=True))
        norm, finite = self._update(values)
        for name, array in ((NORM, np.array(norm, np.float32)), (FINITE, np.array(finite))):
            if name in wanted:
                found[name] = placed(array, places.get(name))
        return [found[name] for name in wanted]

    def _samples(self, values: Mapping[str, OrtValue]) -> float:
        for name, value in values.items():
            if name not in (self._rate, self._scale):
                return samples_of(value)
        return 1.0

    def _forward(
        self,
        fetches: Sequence[str],
        values: Mapping[str, OrtValue],
        training_mode: bool,
        places: Mapping[str, OrtValue],
    ) -> Callable[[RunOptions | None], list[OrtValue]]:
        def work(options: RunOptions | None) -> list[OrtValue]:
            options = options if options is not None else self._path
            options.only_execute_path_to_fetches = True
            options.training_mode = training_mode
            return self._core_run(fetches, values, options, places)

        return work

    def _core_run(
        self,
        fetches: Sequence[str],
        values: Mapping[str, OrtValue],
        options: RunOptions,
        places: Mapping[str, OrtValue],
    ) -> list[OrtValue]:
        given = [places.get(name) for name in fetches]
        return self._execute(options, values, fetches, given)

    def _execute(
        self,
        options: RunOptions,
        values: Mapping[str, OrtValue],
        fetches: Sequence[str],
        given: Sequence[OrtValue | None],
    ) -> list[OrtValue]:
        """Run the graph of this process."""
        return _ortrain.run(
            self._handle, options._handle, list(values), list(values.values()), list(fetches), list(given)
        )

    # ---- updates ----

    def _update(self, values: Mapping[str, OrtValue]) -> tuple[float, bool]:
        """Exchange the gradients and update the weights; return the norm of the gradients and whether it was finite."""
        if self._adasum:
            return self._update_by_adasum(values)
        if self._divided:
            squares = self._reduce_to_shares()
        else:
            squares = self._squares(self._exchange.average())
            self._copy_in("gradient", self._exchange.buffer)
        raw = np.float32(np.sqrt(squares))
        finite = bool(np.isfinite(raw))
        if finite or not self._scale:
            self._run_update(values, float(raw))
            if self._divided:
                self._gather_shares()
        else:
            self._reset_gradients()
        return float(raw / np.float32(self._accumulated)), finite

    def _squares(self, gradients: Array, first: int = 0) -> float:
        """Return the sum of the squares of gradients, which are in the buffer from index ``first`` on.

        The sum includes all processes that have different parts of the model.
        """
        return norm_of(gradients)

    def _run_update(self, values: Mapping[str, OrtValue], raw_norm: float) -> None:
        feed = {name: values[name] for name in (self._rate, self._scale) if name}
        feed[NORM] = OrtValue.ortvalue_from_numpy(np.array(raw_norm, np.float32))
        known = {name: value for name, value in feed.items() if name in self._graph_inputs}
        random = self.random_state()
        self._execute(self._path, known, [UPDATED], [None])
        if random is not None:  # do not count this run: in one process, a whole step is one run
            self.set_random_state(*random)

    def _update_by_adasum(self, values: Mapping[str, OrtValue]) -> tuple[float, bool]:
        exchange = self._exchange
        started = time.perf_counter()
        own = exchange.read()
        weight, runs = exchange.own_weight()
        if weight:
            own *= own.dtype.type(runs / weight)
        raw = np.float32(np.sqrt(self._squares(own)))
        broken = self.ranks.sum(np.array([0.0 if np.isfinite(raw) else 1.0]), DOING)[0]
        finite = broken == 0
        if finite or not self._scale:
            before, after = np.empty_like(own), np.empty_like(own)
            self._copy_out("weight", before)
            self._copy_in("gradient", own)
            self._run_update(values, float(raw))
            self._copy_out("weight", after)
            after -= before
            sent = adasum(self.ranks, after, self._counts)
            before += after
            self._copy_in("weight", before)
            exchange.account(sent, started)
        else:
            self._reset_gradients()
        return float(raw / np.float32(self._accumulated)), finite

    # ---- ZeRO ----

    def _reduce_to_shares(self) -> float:
        """Let each rank add up its share of the gradients; return the sum of the squares of all gradients."""
        started = time.perf_counter()
        exchange = self._exchange
        exchange.read()
        factor = exchange.factor()
        exchange.storage[exchange.buffer.size :] = 0
        own = exchange.reduction.share(exchange.storage)
        own *= own.dtype.type(factor)
        start = self._share * self.ranks.rank
        place = self._exchange.buffer[start : start + self._share]
        place[:] = own[: place.size]
        self._copy_in("gradient", self._exchange.buffer)
        squares = self.ranks.sum(np.array([self._squares(own[: place.size], start)]), DOING)[0]
        exchange.account(exchange.reduction.bytes_of(exchange.storage), started)
        return float(squares)

    def _gather_shares(self) -> None:
        """Send the share of the weights of every rank to all ranks."""
        started = time.perf_counter()
        whole = self._exchange.buffer
        self._copy_out("weight", whole)
        request = self.ranks.data.Iallgather(self.ranks.mpi.IN_PLACE, self._exchange.storage)
        self.ranks.wait(request, "gathering the weights")
        self._copy_in("weight", whole)
        self._exchange.traffic.bytes += self._exchange.storage.nbytes // self.ranks.size
        self._exchange.traffic.seconds += time.perf_counter() - started

    def _range(self, weight: str) -> slice:
        """Return the elements of a weight that this rank updates."""
        number = self.weights.index(weight)
        at, count = sum(self._counts[:number]), self._counts[number]
        start = self._share * self.ranks.rank
        return slice(min(max(start - at, 0), count), min(max(start + self._share - at, 0), count))

    def _without_share(self, name: str, weight: str) -> str:
        """Return the name of a state without the mark of this rank's share."""
        if not self._divided or not weight:
            return name
        end = name.index(weight) + len(weight)
        return name[:end] + re.sub(r"_view_\d$", "", name[end:])

    def partition(self) -> dict[str, dict[str, list[int]]]:
        """Return the shapes of the weights of which this rank has a part."""
        return {
            weight: {"original_dim": list(self.shapes[whole]), "megatron_row_partition": [-1]}
            for name, role, weight in sorted(self._states())
            if role == "weight" and name != (whole := self._without_share(name, weight))
        }

    # ---- state of all ranks ----

    @cached_property
    def loadable(self) -> set[str]:
        """The full names of the states of which this rank lists only its share; programs may load these names, too."""
        return {self._without_share(name, weight) for name, role, weight in self._states() if role in _WHOLE}

    def gather_state(self) -> dict[str, Array]:
        """Return the state that one process would have; every rank calls this."""
        result = {
            self._whole_name(name, part.role, part.weight): part.value
            for name, part in self._merged(self._complete()).items()
        }
        if random := next((s for s in self.world.gather(self.random_state(), GATHERING) if s), None):
            result[RANDOM] = np.array(random)
        return dict(sorted(result.items()))

    def _complete(self) -> dict[str, StatePart]:
        """Return the complete states of this process's part of the model, joined from the shares of several ranks."""
        own: dict[str, StatePart] = {}
        for name, role, weight in self._states():
            whole = self._without_share(name, weight)
            value = _ortrain.session_get_state(self._handle, whole if role in _WHOLE else name).numpy()
            own[whole] = StatePart(role, weight, value)
        found = self.ranks.gather({n: p for n, p in own.items() if p.role in self._differing}, GATHERING)
        for name in {name for states in found for name in states}:
            parts = [states[name] for states in found if name in states]
            role, weight = parts[0].role, name[len(parts[0].role) + 1 :]
            value = parts[0].value
            if self._divided and role in MOMENTS:
                value = np.concatenate([part.value.ravel() for part in parts]).reshape(self.shapes[weight])
            own[name] = StatePart(role, parts[0].weight, value)
        return own

    @property
    def _differing(self) -> tuple[str, ...]:
        """Roles of states that are not the same on all ranks with the same weights."""
        of_optimizer = (*MOMENTS, "Update_Count") if self._divided or self._adasum else ()
        return ("statistics", *of_optimizer)

    def _merged(self, own: dict[str, StatePart]) -> dict[str, StatePart]:
        """Return the states of the whole model, joined from the states of all parts."""
        return own

    def _whole_name(self, name: str, role: str, weight: str) -> str:
        """Return the name that a state has when one process trains."""
        return name

    def _own_part(self, weight: str, array: Array) -> Array:
        """Return this process's part of a weight's state, which may be divided by columns or rows."""
        return array

    def _whole_shape(self, weight: str) -> tuple[int, ...]:
        """Return the shape that a weight has when one process trains."""
        return self.shapes[weight]

    def localized(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return this rank's part of the state of a single process, under the names on this rank."""
        own_names = {name for name, _, _ in self._states()}
        roles = (*MOMENTS, "Update_Count")
        updated_elsewhere = {f"{role}_{weight}" for role in roles for weight in self._whole_weight.values()}
        result: dict[str, Any] = {}
        for name, value in state.items():
            if name == RANDOM:
                seed, number = map(int, value.numpy() if isinstance(value, OrtValue) else value)
                result[name] = self._drawing(seed, number)
                continue
            if self._divided and name in updated_elsewhere - self._here.keys():
                continue
            own, without, role = self._here.get(name, (name, name, ""))
            if role not in (*_WHOLE, *MOMENTS) or (own == name and name in own_names):
                result[own] = value
                continue
            weight = without[len(role) + 1 :] if role in MOMENTS else self._weight_of[without]
            array = value.numpy() if isinstance(value, OrtValue) else np.asarray(value)
            if array.size != np.prod(self._whole_shape(weight)):
                raise invalid(
                    f"load_state: Tensor size mismatch: {name!r} has shape {self._whole_shape(weight)}, "
                    f"found {array.shape}"
                )
            array = self._own_part(weight, array)
            result[own] = array.ravel()[self._range(weight)] if self._divided and role in MOMENTS else array
        return result

    @cached_property
    def _here(self) -> dict[str, tuple[str, str, str]]:
        """By a state's name in a single process: its name on this rank, the latter without the mark of a share, its role."""
        here = {}
        for name, role, weight in self._states():
            without = self._without_share(name, weight)
            whole = self._whole_name(without, role, weight)
            here[whole] = without if role in _WHOLE else name, without, role
        return here

    @cached_property
    def _weight_of(self) -> dict[str, str]:
        """The weights of this process, by their names and by the names of their copies in 16 bits."""
        local = {whole: weight for weight, whole in self._whole_weight.items()}
        return {
            self._without_share(name, weight): local[weight]
            for name, role, weight in self._states()
            if role in _WHOLE
        }
