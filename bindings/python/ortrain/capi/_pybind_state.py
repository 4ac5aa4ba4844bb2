"""The classes of the older Python API that programs import from ``onnxruntime.capi._pybind_state``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ortrain import training_session
from ortrain._ortrain import OrtValue
from ortrain.api.generated.enums import ExecutionMode, GraphOptimizationLevel, OrtAllocatorType, OrtMemType
from ortrain.api.generated.gradient_graph_builder import GradientGraphBuilder
from ortrain.api.generated.node_arg import NodeArg
from ortrain.api.generated.training_parameters import TrainingParameters
from ortrain.devices import OrtDevice, OrtMemoryInfo
from ortrain.errors import OrtrainError
from ortrain.inference_session import ModelMetadata
from ortrain.io_binding import OrtValueVector
from ortrain.library import (
    get_all_providers,
    get_available_providers,
    get_build_info,
    get_device,
    get_version_string,
    set_default_logger_callback,
    set_default_logger_severity,
    set_default_logger_verbosity,
)
from ortrain.options import RunOptions, SessionOptions
from ortrain.training_session import Array

__all__ = [
    "ExecutionMode",
    "GradientGraphBuilder",
    "GraphOptimizationLevel",
    "ModelMetadata",
    "NodeArg",
    "OrtAllocatorType",
    "OrtDevice",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtValue",
    "OrtValueVector",
    "RunOptions",
    "SessionOptions",
    "TrainingConfigurationResult",
    "TrainingParameters",
    "TrainingSession",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "is_ortmodule_available",
    "set_default_logger_callback",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
]


def is_ortmodule_available() -> bool:
    """Return whether there is an ORTModule; there is none."""
    return False


@dataclass(frozen=True)
class TrainingConfigurationResult:
    """What loading a model found out."""

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
