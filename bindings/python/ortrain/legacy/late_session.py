"""A TrainingSession that gets its model after its creation, as in onnxruntime's inner module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ortrain._ortrain import OrtValue
from ortrain.api.generated.node_arg import NodeArg
from ortrain.errors import OrtrainError
from ortrain.inference_session import ModelMetadata
from ortrain.io_binding import IOBinding
from ortrain.legacy import training_session
from ortrain.legacy.generated.training_parameters import TrainingParameters
from ortrain.legacy.training_session import Array
from ortrain.options import RunOptions, SessionOptions


def is_ortmodule_available() -> bool:
    """Return whether there is an ORTModule; there is none."""
    return False


@dataclass(frozen=True)
class TrainingConfigurationResult:
    """The result of loading a model."""

    loss_scale_input_name: str | None
    """Name of the input for the loss scale with mixed precision, otherwise None."""


class TrainingSession:
    """A session that gets its model later; :class:`ortrain.TrainingSession` does the work."""

    def __init__(self, sess_options: SessionOptions | None = None) -> None:
        """Create a session without a model.

        Parameters
        ----------
        sess_options : SessionOptions, optional
            Settings for the model that is loaded.
        """
        self._options = sess_options
        self._session: training_session.TrainingSession | None = None

    def _load(
        self,
        model: str | bytes,
        parameters: TrainingParameters,
        providers: Sequence[str],
        options: Sequence[Mapping[str, str]],
    ) -> TrainingConfigurationResult:
        if self._session is not None:
            raise OrtrainError("the session has a model already; create another session for another model")
        session = training_session.TrainingSession(
            model, parameters, self._options, list(providers) or None, list(options) or None
        )
        self._session = session
        return TrainingConfigurationResult(session.loss_scale_input_name)

    def load_model(
        self,
        path: str,
        parameters: TrainingParameters,
        providers: Sequence[str] = (),
        provider_options: Sequence[Mapping[str, str]] = (),
    ) -> TrainingConfigurationResult:
        """Load a model from a file and add what training needs."""
        if not isinstance(path, str):
            raise TypeError(f"expected the path of a model, found {type(path).__name__}")
        return self._load(path, parameters, providers, provider_options)

    def read_bytes(
        self,
        model: bytes,
        parameters: TrainingParameters,
        providers: Sequence[str] = (),
        provider_options: Sequence[Mapping[str, str]] = (),
    ) -> TrainingConfigurationResult:
        """Load a model from memory and add what training needs."""
        if not isinstance(model, bytes):
            raise TypeError(f"expected the bytes of a model, found {type(model).__name__}")
        return self._load(model, parameters, providers, provider_options)

    @property
    def inputs_meta(self) -> list[NodeArg]:
        """The inputs of a run."""
        return self._loaded.get_inputs()

    @property
    def outputs_meta(self) -> list[NodeArg]:
        """The outputs of a run."""
        return self._loaded.get_outputs()

    @property
    def overridable_initializers(self) -> list[NodeArg]:
        """Initializers that are inputs as well."""
        return self._loaded.get_overridable_initializers()

    @property
    def model_meta(self) -> ModelMetadata:
        """The metadata of the model."""
        return self._loaded.get_modelmeta()

    @property
    def get_profiling_start_time_ns(self) -> int:
        """When the recording of a profile began, as :func:`time.time_ns`; 0 if nothing was recorded."""
        return self._loaded.get_profiling_start_time_ns()

    def end_profiling(self) -> str:
        """Stop the recording of a profile, and return the path of its file; empty if nothing was recorded."""
        return self._loaded.end_profiling()

    @property
    def _loaded(self) -> training_session.TrainingSession:
        if self._session is None:
            raise OrtrainError("the session has no model; call load_model or read_bytes first")
        return self._session

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        """Train, as :meth:`ortrain.TrainingSession.run`."""
        return self._loaded.run(output_names, input_feed, run_options)

    def run_with_iobinding(self, io_binding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Train with bound inputs and outputs, as :meth:`ortrain.TrainingSession.run_with_iobinding`."""
        self._loaded.run_with_iobinding(io_binding, run_options)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        """Train with values that the library holds, as :meth:`ortrain.TrainingSession.run_with_ort_values`."""
        return self._loaded.run_with_ort_values(output_names, input_feed, run_options)

    def get_state(self) -> dict[str, Array]:
        """Return copies of everything that training changes, by name."""
        return self._loaded.get_state()

    def get_model_state(self, include_mixed_precision_weights: bool) -> dict[str, dict[str, Array]]:
        """Return copies of the weights."""
        return self._loaded.get_model_state(include_mixed_precision_weights)

    def get_optimizer_state(self) -> dict[str, dict[str, Array]]:
        """Return copies of the optimizer's state."""
        return self._loaded.get_optimizer_state()

    def get_partition_info_map(self) -> dict[str, dict[str, list[int]]]:
        """Return how weights are divided among processes."""
        return self._loaded.get_partition_info_map()

    def load_state(self, state: Mapping[str, Any], strict: bool) -> None:
        """Overwrite state."""
        self._loaded.load_state(state, strict)

    def is_output_fp32_node(self, output_name: str) -> bool:
        """Return whether the node that produces a value produces it in float32."""
        return self._loaded.is_output_fp32_node(output_name)

    def finalize(self) -> None:
        """Do nothing: communication with other processes ends when this one exits."""
