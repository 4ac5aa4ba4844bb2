"""TrainingSession: a session in which a run of the model trains it, as in the older Python API of onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain import _ortrain
from ortrain._ortrain import OrtValue
from ortrain._support.checks import check_providers
from ortrain._support.signatures import ModelSignature
from ortrain._support.values import as_arrays
from ortrain.api.generated.node_arg import NodeArg
from ortrain.api.generated.run_options import RunOptions
from ortrain.errors import InvalidArgumentError, OrtErrorCode, OrtrainError
from ortrain.inference_session import InferenceSession
from ortrain.io_binding import Bound
from ortrain.legacy.generated.training_parameters import TrainingParameters
from ortrain.legacy.joining import Job, complete_sizes, expect_same_model, join
from ortrain.legacy.shared_binding import SharedBinding
from ortrain.legacy.shared_training import SharedTraining
from ortrain.legacy.sharing import share_training
from ortrain.legacy.states import session_states
from ortrain.options import SessionOptions

Array = npt.NDArray[Any]

_FLOAT = 1
"""ONNX's number of float32."""


class TrainingSession(InferenceSession):
    """Trains a model: every run computes gradients and updates the weights.

    The members have the same names and meanings as those of onnxruntime's class up to 1.16. The model gets gradients
    and an optimizer according to the :class:`TrainingParameters`. A run executes the whole graph, including the update,
    whichever outputs are requested; with ``RunOptions.only_execute_path_to_fetches`` it executes only the nodes that
    the requested outputs need. A requested loss was computed before the update. New programs should use
    :class:`ortrain.api.Module`.
    """

    def __init__(
        self,
        path_or_bytes: str | bytes,
        parameters: TrainingParameters,
        sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Create a session from a forward model that ends in a loss.

        Parameters
        ----------
        path_or_bytes : str or bytes
            Path of an ONNX file, or its contents.
        parameters : TrainingParameters
            Settings, copied.
        sess_options : SessionOptions, optional
            Settings, copied.
        providers : sequence, optional
            Where to run: names, or pairs of a name and options. Only CPUExecutionProvider exists; others are ignored
            with a warning.
        provider_options : sequence of mappings, optional
            Options of the providers, one mapping per provider.

        Raises
        ------
        TypeError
            If the model is neither a path nor bytes, or the parameters are not TrainingParameters.
        FileNotFoundError
            If there is no such file.
        InvalidArgumentError
            If the parameters do not fit the model or each other.
        NotImplementedInOrtrainError
            If the model cannot be trained; the message names every reason.
        """
        if not isinstance(path_or_bytes, (str, bytes)):
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        if not isinstance(parameters, TrainingParameters):
            raise TypeError(f"expected TrainingParameters, found {type(parameters).__name__}")
        check_providers(providers, provider_options)
        self._set_up(sess_options)
        options = self._sess_options
        self._shared: SharedTraining | None = None
        ranks = None
        if parameters.world_size > 1:
            complete_sizes(parameters)
            ranks = join(parameters, options)
            if parameters.horizontal_parallel_size > 1:
                expect_same_model(ranks, path_or_bytes)
        if isinstance(path_or_bytes, bytes):
            self._handle = _ortrain.create_training_graph_session_from_array(
                path_or_bytes, parameters._handle(), options._handle
            )
        else:
            self._handle = _ortrain.create_training_graph_session(
                path_or_bytes, parameters._handle(), options._handle
            )
        self._signature = ModelSignature.of(self._handle)
        self.loss_scale_input_name: str | None = (
            _ortrain.session_get_loss_scale_input_name(self._handle) or None
        )
        """Name of the input for the loss scale with mixed precision, otherwise None."""
        if ranks is not None:
            job = Job(self._handle, ranks, parameters, options, super().get_inputs(), super().get_outputs())
            self._shared = ranks.guarded(share_training, job)
            names = [entry.name for entry in self._shared.visible_outputs(job.outputs)]
            self._signature = replace(self._signature, outputs=names)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Train: run the whole graph and return the requested outputs.

        Parameters
        ----------
        output_names : sequence of str or None
            Names of the requested outputs; None or an empty list for all of them.
        input_feed : mapping
            A value for each input, by name. All inputs are needed, whatever is requested.
        run_options : RunOptions, optional
            With ``only_execute_path_to_fetches``, only what the outputs need runs, so that fetching the loss changes
            nothing. Without ``training_mode``, dropouts drop nothing.

        Returns
        -------
        list
            The outputs, in the order of the names.

        Raises
        ------
        ValueError
            If an input is missing or does not fit.
        """
        self._check_feed(input_feed)
        if self._shared is None:
            return super().run(output_names or None, input_feed, run_options)
        wanted = self._wanted(output_names)
        values = self._shared.take(self._signature, input_feed)
        outputs = self._shared.run(wanted, values, run_options, [None] * len(wanted))
        return [as_arrays(output) for output in outputs]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
        output_values: Mapping[str, OrtValue] | None = None,
    ) -> list[OrtValue]:
        """Train like :meth:`run`, with tensors for inputs and outputs."""
        self._check_feed(input_dict_ort_values)
        if self._shared is None:
            return super().run_with_ort_values(
                output_names or None, input_dict_ort_values, run_options, output_values
            )
        wanted = self._wanted(output_names)
        given = [(output_values or {}).get(name) for name in wanted]
        values = self._shared.take(self._signature, input_dict_ort_values)
        return self._shared.run(wanted, values, run_options, given)

    def _new_binding(self) -> Bound:
        if self._shared is None:
            return super()._new_binding()
        inputs = (entry.name for entry in self.get_inputs())
        return SharedBinding(inputs, self._signature.outputs)

    def _run_bound(self, bound: Any, run_options: Any) -> None:
        if self._shared is None:
            super()._run_bound(bound, run_options)
        else:
            bound.run(self._shared, run_options)

    def _wanted(self, output_names: Sequence[str] | None) -> list[str]:
        wanted = self._signature.wanted(output_names)
        for name in wanted:
            if name not in self._signature.outputs:
                known = ", ".join(self._signature.outputs)
                raise InvalidArgumentError(f"the model has no output {name!r}; its outputs: {known}")
        return wanted

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs of a run: those of the model, then those that training adds."""
        inputs = super().get_inputs()
        if self._shared is None:
            return inputs
        return self._shared.visible_inputs(inputs)

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs of a run: those of the model, then those that training adds."""
        outputs = super().get_outputs()
        if self._shared is None:
            return outputs
        return self._shared.visible_outputs(outputs)

    @cached_property
    def _required(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.get_inputs())

    def _check_feed(self, feed: Mapping[str, Any]) -> None:
        if self._shared is not None and (hidden := sorted(self._shared.hidden_inputs & set(feed))):
            message = f"Invalid Feed Input Name:{hidden[0]}"
            raise InvalidArgumentError(message, OrtErrorCode.ORT_INVALID_ARGUMENT)
        missing = [name for name in self._required if name not in feed]
        if missing:
            message = f"Required inputs ({missing}) are missing from input feed ({list(feed)})."
            raise InvalidArgumentError(message, OrtErrorCode.ORT_INVALID_ARGUMENT)

    # ---- state ----

    def _states(self) -> list[tuple[str, str, str]]:
        return session_states(self._handle)

    def _state(self, name: str) -> Array:
        return _ortrain.session_get_state(self._handle, name).numpy()

    def get_state(self) -> dict[str, Array]:
        """Return copies of everything that training changes, by name.

        Returns
        -------
        dict of str to array
            Weights under their names, ``Moment_1_<weight>``, ``Moment_2_<weight>`` and ``Update_Count_<weight>`` of
            Adam, ``Step`` of Lamb, ``<weight>_fp16`` with mixed precision, running statistics of normalizations, and
            ``Random_State`` of Dropout and other random operators: the seed of the process and the number of the next
            run. Sorted by name. Frozen weights are not in it.
        """
        return {name: self._state(name) for name, _, _ in self._states()}

    def _gather_state(self) -> dict[str, Array]:
        """Return the state that one process would have, see :func:`ortrain.distributed.gather_state`."""
        return self.get_state() if self._shared is None else self._shared.gather_state()

    def get_model_state(self, include_mixed_precision_weights: bool = False) -> dict[str, dict[str, Array]]:
        """Return copies of the weights.

        Parameters
        ----------
        include_mixed_precision_weights : bool, default False
            Whether to add the 16-bit copies.

        Returns
        -------
        dict
            ``{"full_precision": {weight: array}}``, and ``"mixed_precision"`` with the same names.
        """
        states = self._states()
        result = {
            "full_precision": {
                weight if role == "weight" else name: self._state(name)
                for name, role, weight in states
                if role in ("weight", "statistics")
            }
        }
        if include_mixed_precision_weights:
            result["mixed_precision"] = {
                weight: self._state(name) for name, role, weight in states if role == "mixed_precision"
            }
        return result

    def get_optimizer_state(self) -> dict[str, dict[str, Array]]:
        """Return copies of the optimizer's state.

        Returns
        -------
        dict
            For each weight ``Moment_1``, ``Moment_2`` and, of Adam, ``Update_Count``; of Lamb
            ``shared_optimizer_state`` with ``Step``. Empty with SGD.
        """
        result: dict[str, dict[str, Array]] = {}
        for name, role, weight in self._states():
            if role in ("Moment_1", "Moment_2", "Update_Count", "Step"):
                result.setdefault(weight or "shared_optimizer_state", {})[role] = self._state(name)
        return result

    def get_partition_info_map(self) -> dict[str, dict[str, list[int]]]:
        """Return how weights are divided among processes.

        Returns
        -------
        dict
            For each weight of which this process has a part alone, ``original_dim``, its shape, and
            ``megatron_row_partition``: -1 for a part of the flat weight (ZeRO), 0 for columns, 1 for rows. Empty with
            one process.
        """
        return {} if self._shared is None else self._shared.partition()

    def load_state(self, dict: Mapping[str, Any], strict: bool = False) -> None:
        """Overwrite state.

        Parameters
        ----------
        dict : mapping of str to array
            Values by the names of :meth:`get_state`. It need not be complete.
        strict : bool, default False
            Whether a name that is not a state is an error instead of being ignored.

        Raises
        ------
        OrtrainError
            If a name is unknown, or a value has another type or another number of elements; nothing is changed then.
        """
        known = {name for name, _, _ in self._states()}
        if self._shared is not None:
            dict = self._shared.localized(dict)
            known |= self._shared.loadable
        values: list[tuple[str, OrtValue]] = []
        for name, value in dict.items():
            if name in known:
                array = value.numpy() if isinstance(value, OrtValue) else np.asarray(value)
                self._check_state(name, array)
                values.append((name, OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))))
            elif strict:
                raise OrtrainError(f"load_state: the session has no state {name!r}", OrtErrorCode.ORT_FAIL)
        for name, tensor in values:
            _ortrain.session_set_state(self._handle, name, tensor)

    def _check_state(self, name: str, array: Array) -> None:
        current = _ortrain.session_get_state(self._handle, name).numpy()
        if array.size != current.size:
            raise InvalidArgumentError(
                f"load_state: Tensor size mismatch: {name!r} has shape {current.shape}, found {array.shape}",
                OrtErrorCode.ORT_INVALID_ARGUMENT,
            )
        if array.dtype != current.dtype:
            raise InvalidArgumentError(
                f"load_state: {name!r} is of type {current.dtype}, found {array.dtype}",
                OrtErrorCode.ORT_INVALID_ARGUMENT,
            )

    def is_output_fp32_node(self, output_name: str) -> bool:
        """Return whether the node that produces a value produces it in float32.

        Parameters
        ----------
        output_name : str
            Name of the value, which need not be an output of the model.

        Raises
        ------
        OrtrainError
            If no node produces it.
        """
        return int(_ortrain.session_get_node_output_type(self._handle, output_name)) == _FLOAT
