"""Training of ONNX models on the device that runs them.

:mod:`ortrain.api` has the training loop, :mod:`ortrain.artifacts` creates the files that it starts from, and
:class:`InferenceSession` runs models forward.
"""

from __future__ import annotations

from ortrain import _main_interpreter, _ortrain  # in this order
from ortrain._ortrain import OrtValue, __version__
from ortrain.adapters import AdapterFormat, LoraAdapter
from ortrain.api.generated.enums import (
    ExecutionMode,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
)
from ortrain.api.generated.gradient_graph_builder import GradientGraphBuilder
from ortrain.api.generated.node_arg import NodeArg
from ortrain.api.generated.training_parameters import TrainingParameters
from ortrain.devices import OrtDevice, OrtMemoryInfo
from ortrain.errors import (
    InvalidArgumentError,
    InvalidModelError,
    NoSuchFileError,
    NotImplementedInOrtrainError,
    OrtErrorCode,
    OrtrainError,
)
from ortrain.inference_session import InferenceSession, ModelMetadata
from ortrain.io_binding import IOBinding, OrtValueVector, SessionIOBinding
from ortrain.library import (
    get_all_providers,
    get_available_providers,
    get_build_info,
    get_device,
    get_version_string,
    register_gradient,
    set_default_logger_severity,
    set_default_logger_verbosity,
)
from ortrain.options import ExecutionOrder, RunOptions, SessionOptions
from ortrain.trainer import Trainer
from ortrain.training_session import TrainingSession

__all__ = [
    "AdapterFormat",
    "ExecutionMode",
    "ExecutionOrder",
    "GradientGraphBuilder",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "InvalidArgumentError",
    "InvalidModelError",
    "LoraAdapter",
    "ModelMetadata",
    "NoSuchFileError",
    "NodeArg",
    "NotImplementedInOrtrainError",
    "OrtAllocatorType",
    "OrtDevice",
    "OrtDeviceMemoryType",
    "OrtErrorCode",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtMemoryInfoDeviceType",
    "OrtValue",
    "OrtValueVector",
    "OrtrainError",
    "RunOptions",
    "SessionIOBinding",
    "SessionOptions",
    "Trainer",
    "TrainingParameters",
    "TrainingSession",
    "__version__",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_version_string",
    "register_gradient",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]

del _main_interpreter


def set_seed(seed: int) -> None:
    """Set the process-wide random seed.

    Parameters
    ----------
    seed : int
        Any 64-bit integer. Modules created afterwards draw the same random numbers in every run with this seed.
    """
    _ortrain.set_seed(seed)
