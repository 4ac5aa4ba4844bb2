"""A TrainingSession as a pipeline: each process computes some of the layers.

Y. Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism", 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain import _ortrain
from ortrain._ortrain import OrtValue
from ortrain._support.checks import invalid
from ortrain._support.counts import counted
from ortrain._support.signatures import ModelSignature
from ortrain.api.generated.node_arg import NodeArg
from ortrain.api.generated.run_options import RunOptions
from ortrain.distributed.communicator import Communicator
from ortrain.legacy.generated.training_parameters import TrainingParameters
from ortrain.legacy.joining import Job
from ortrain.legacy.shared_training import (
    ACCUMULATED,
    GATHERING,
    NORM,
    SharedTraining,
    StatePart,
    norm_of,
    placed,
)

Array = npt.NDArray[Any]

_DOING = "pipeline"


def cut_values(parameters: TrainingParameters, made: Sequence[set[str]]) -> list[list[str]]:
    """Return the values of each cut, from the outputs that the stages have."""
    cuts = []
    for text, outputs in zip(parameters.pipeline_cut_info_string.split(","), made, strict=False):
        values = []
        for part in text.split(":"):
            prefixes = (part[:end] for end in range(len(part), 0, -1))
            values.append(next(prefix for prefix in prefixes if prefix in outputs))
        cuts.append(values)
    return cuts


class PipelineTraining(SharedTraining):
    """The runs of a session that has one stage of the model.

    A batch is cut into micro-batches. A stage computes its values for all of them, one after the other, and passes them
    on; in the backward pass it computes them again from what it has received, together with the gradients.
    """

    _is_cut = True

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        ranks, parameters, inputs, outputs = job.ranks, job.parameters, job.inputs, job.outputs
        self._sends: list[tuple[Any, Array]] = []
        self._micro = parameters.num_pipeline_micro_batches
        self._sliced = set(parameters.sliced_tensor_names)
        self._axes = parameters.sliced_axes
        self._schema = parameters.sliced_schema
        names = [entry.name for entry in inputs]
        made = self._pipe.gather([entry.name for entry in outputs], _DOING)
        taken = self._pipe.gather(names, _DOING)
        cuts = cut_values(parameters, [{*a, *b} for a, b in zip(made, taken, strict=True)])
        self._received = cuts[self._stage - 1] if self._stage else []
        self._sent = cuts[self._stage] if self._stage < self._last else []
        self._gradients = [f"{value}_grad" for value in self._sent if f"{value}_grad" in names]
        self._input_gradients = [
            f"{value}_input_grad" for value in self._received if f"{value}_input_grad" in made[self._stage]
        ]
        own = [entry for entry in inputs if entry.name not in {*self._received, *self._gradients, NORM}]
        self._own_inputs = {entry.name for entry in own} - {self._rate, self._scale}
        internal = {name for cut in cuts for name in cut}
        described = self._pipe.gather(
            (
                [(entry.name, entry.type, entry.shape) for entry in own],
                [
                    (entry.name, entry.type, entry.shape)
                    for entry in outputs
                    if not entry.name.endswith("_input_grad") and entry.name not in internal
                ],
            ),
            _DOING,
        )
        self._inputs = self._united([each[0] for each in described], {self._rate, self._scale})
        self._outputs = self._united([each[1] for each in described], {ACCUMULATED})
        self._owner = {
            name: stage for stage in range(self._last, -1, -1) for name, _, _ in described[stage][1]
        }
        self._elsewhere = {name for here in ranks.gather(list(self._here), _DOING) for name in here}

    def _divide(self, job: Job) -> Communicator:
        width = job.parameters.data_parallel_size
        self._stage = job.ranks.rank // width
        self._last = job.parameters.pipeline_parallel_size - 1
        self._pipe = job.ranks.part(job.ranks.rank % width)
        return job.ranks.part(self._stage)

    @staticmethod
    def _united(parts: Sequence[Sequence[tuple[str, str, list[Any]]]], at_end: set[str]) -> list[NodeArg]:
        """Return each entry once; the entries for training come last."""
        entries = {entry[0]: NodeArg(*entry) for part in parts for entry in part}
        return [entries[name] for name in sorted(entries, key=lambda name: name in at_end)]

    @property
    def hidden_inputs(self) -> set[str]:
        """Inputs of the graph that are not the caller's."""
        return {NORM, *self._received, *self._gradients}

    def visible_inputs(self, own: Sequence[NodeArg]) -> list[NodeArg]:
        """Return the inputs of all stages."""
        return self._inputs

    def visible_outputs(self, own: Sequence[NodeArg]) -> list[NodeArg]:
        """Return the outputs of all stages."""
        return super().visible_outputs(self._outputs)

    def take(self, signature: ModelSignature, feed: Mapping[str, Any]) -> dict[str, OrtValue]:
        """Return the inputs of a run by name, with those of other stages."""
        own = signature.take({name: value for name, value in feed.items() if name in signature.index})
        known = {entry.name for entry in self._inputs}
        for name, value in feed.items():
            if name not in known:
                raise invalid(f"the model has no input {name!r}; its inputs: {', '.join(sorted(known))}")
            if name not in own:
                own[name] = (
                    value if isinstance(value, OrtValue) else OrtValue.ortvalue_from_numpy(np.asarray(value))
                )
        return {name: own[name] for name in feed}

    # ---- runs ----

    def _slices(self, values: Mapping[str, OrtValue], count: int) -> list[dict[str, OrtValue]]:
        """Return this stage's inputs for each micro-batch."""
        parts: list[dict[str, OrtValue]] = [{} for _ in range(count)]
        for name in self._own_inputs & set(values):
            array = values[name].numpy()
            axis = self._axes.get(name, 0)
            if self._sliced and name not in self._sliced:
                pieces = [array] * count
            else:
                if not 0 <= axis < array.ndim:
                    raise invalid(
                        f"sliced_axes: expected an axis of {name!r}, shape {array.shape}, found {axis}"
                    )
                if array.shape[axis] % count:
                    raise invalid(
                        f"num_pipeline_micro_batches: {name!r} has {counted(array.shape[axis], 'entry')} along axis {axis}, "
                        f"which {count} micro-batches cannot share equally"
                    )
                pieces = np.split(array, count, axis)
                if (schema := self._schema.get(name)) and list(pieces[0].shape) != list(schema):
                    raise invalid(
                        f"sliced_schema: expected {schema} for a micro-batch of {name!r}, found {list(pieces[0].shape)}"
                    )
            for part, piece in zip(parts, pieces, strict=True):
                part[name] = OrtValue.ortvalue_from_numpy(np.ascontiguousarray(piece))
        return parts

    def _forward(
        self,
        fetches: Sequence[str],
        values: Mapping[str, OrtValue],
        training_mode: bool,
        places: Mapping[str, OrtValue],
    ) -> Callable[[RunOptions | None], list[OrtValue]]:
        def work(options: RunOptions | None) -> list[OrtValue]:
            return self._train(fetches, values, training_mode, places)

        return work

    def _samples(self, values: Mapping[str, OrtValue]) -> float:
        return super()._samples(values) / self._micro

    def _core_run(
        self,
        fetches: Sequence[str],
        values: Mapping[str, OrtValue],
        options: RunOptions,
        places: Mapping[str, OrtValue],
    ) -> list[OrtValue]:
        """Compute outputs without gradients, through all stages."""
        run = RunOptions()
        run.only_execute_path_to_fetches = True
        run.training_mode = options.training_mode
        (own,) = self._slices(values, 1)
        found = self._pass_on(own, self._owned(fetches), run)[0]
        self._finish_sends()
        return self._collect(fetches, {name: [value] for name, value in found.items()}, places)

    def _owned(self, fetches: Sequence[str]) -> list[str]:
        return [name for name in fetches if self._owner.get(name) == self._stage and name != ACCUMULATED]

    def _run_stage(
        self, feed: Mapping[str, OrtValue], fetches: Sequence[str], options: RunOptions
    ) -> dict[str, Array]:
        names = list(dict.fromkeys(fetches))
        if not names:
            return {}
        made = _ortrain.run(
            self._handle, options._handle, list(feed), list(feed.values()), names, [None] * len(names)
        )
        return {name: value.numpy() for name, value in zip(names, made, strict=True)}

    def _pass_on(
        self, own: dict[str, OrtValue], fetches: Sequence[str], options: RunOptions
    ) -> tuple[dict[str, Array], dict[str, OrtValue]]:
        """Receive values from the stage before, run this stage, send results to the next; return the fetches and the inputs."""
        feed = {**own, **self._take(self._received, self._stage - 1)}
        passed = [name for name in self._sent if name in feed]
        computed = [name for name in self._sent if name not in feed]
        found = self._run_stage(feed, [*fetches, *computed], options)
        for name in self._sent:
            self._give(feed[name].numpy() if name in passed else found[name], self._stage + 1)
        return {name: found[name] for name in fetches}, feed

    def _take(self, names: Sequence[str], stage: int) -> dict[str, OrtValue]:
        taken = {}
        for name in names:
            value = self._pipe.receive(stage, _DOING)
            # A stage takes float32, even if the stage before computed the value in 16 bits.
            taken[name] = OrtValue.ortvalue_from_numpy(
                value.astype(np.float32) if value.dtype == np.float16 else value
            )
        return taken

    def _give(self, array: Array, stage: int) -> None:
        kept = np.ascontiguousarray(array)
        self._sends += [(request, kept) for request in self._pipe.start_send(kept, stage)]

    def _finish_sends(self) -> None:
        for request, _ in self._sends:
            self._pipe.wait(request, _DOING)
        self._sends = []

    def _train(
        self,
        fetches: Sequence[str],
        values: Mapping[str, OrtValue],
        training_mode: bool,
        places: Mapping[str, OrtValue],
    ) -> list[OrtValue]:
        options = RunOptions()
        options.only_execute_path_to_fetches = True
        options.training_mode = training_mode
        owned = self._owned(fetches)
        parts = self._slices(values, self._micro)
        scale = {self._scale: values[self._scale]} if self._scale else {}
        results: dict[str, list[Array]] = {name: [] for name in owned}
        backward = [ACCUMULATED, *self._input_gradients]
        kept: list[dict[str, OrtValue]] = []
        # A micro-batch must draw the same numbers when its values are computed again.
        random = self.random_state()
        for number, part in enumerate(parts):
            if random is not None:
                self.set_random_state(random[0], random[1] + number)
            if self._stage == self._last:
                feed = {**part, **scale, **self._take(self._received, self._stage - 1)}
                found = self._run_stage(feed, [*owned, *backward], options)
                for name in self._input_gradients:
                    self._give(found[name], self._stage - 1)
            else:
                found, feed = self._pass_on(part, owned, options)
                kept.append(feed)
            for name in owned:
                results[name].append(found[name])
        for number, feed in enumerate(kept):
            if random is not None:
                self.set_random_state(random[0], random[1] + number)
            gradients = self._take(self._gradients, self._stage + 1)
            found = self._run_stage({**feed, **gradients}, backward, options)
            for name in self._input_gradients:
                self._give(found[name], self._stage - 1)
        self._finish_sends()
        return self._collect(fetches, results, places)

    def _collect(
        self, fetches: Sequence[str], results: Mapping[str, list[Array]], places: Mapping[str, OrtValue]
    ) -> list[OrtValue]:
        """Return the outputs of all stages: means of scalars, and arrays joined along the axis that was cut."""
        own: dict[str, Array] = {}
        for name, parts in results.items():
            if parts[0].ndim == 0:
                own[name] = np.mean(parts, dtype=parts[0].dtype)[...]
            else:
                own[name] = np.concatenate(parts, self._axes.get(name, 0))
        everything: dict[str, Array] = {ACCUMULATED: np.array([True])}
        for found in self._pipe.gather(own, _DOING):
            everything.update(found)
        return [placed(np.asarray(everything[name]), places.get(name)) for name in fetches]

    def _squares(self, gradients: Array, first: int = 0) -> float:
        return float(self._pipe.sum(np.array([norm_of(gradients)]), _DOING)[0])

    def _merged(self, own: dict[str, StatePart]) -> dict[str, StatePart]:
        return {name: part for states in self._pipe.gather(own, GATHERING) for name, part in states.items()}

    def localized(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return what this stage keeps of the state of a whole model."""
        here = {*self._here, *(name for name, _, _ in self._states())}
        own = {name: value for name, value in state.items() if name in here or name not in self._elsewhere}
        return super().localized(own)
