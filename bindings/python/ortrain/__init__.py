"""Training of ONNX models on the device that runs them.

:mod:`ortrain.api` has the training loop, :mod:`ortrain.artifacts` creates the files that it starts from, and
:class:`InferenceSession` runs models forward.
"""

from __future__ import annotations

from ortrain import _interrupt, _main_interpreter, _ortrain  # in this order
from ortrain._ortrain import OrtValue, __version__
from ortrain.adapters import AdapterFormat, LoraAdapter
from ortrain.api.generated.enums import (
    ExecutionMode,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtCompileApiFlags,
    OrtDeviceMemoryType,
    OrtExecutionProviderDevicePolicy,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
    OrtSparseFormat,
)
from ortrain.api.generated.gradient_graph_builder import GradientGraphBuilder
from ortrain.api.generated.node_arg import NodeArg
from ortrain.api.generated.training_parameters import TrainingParameters
from ortrain.compilation import ModelCompiler, OrtExternalInitializerInfo
from ortrain.devices import (
    OrtDevice,
    OrtEpAssignedNode,
    OrtEpAssignedSubgraph,
    OrtEpDevice,
    OrtHardwareDevice,
    OrtMemoryInfo,
    copy_tensors,
    get_ep_devices,
)
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
    disable_telemetry_events,
    enable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_build_info,
    get_device,
    get_version_string,
    has_collective_ops,
    preload_dlls,
    register_execution_provider_library,
    register_gradient,
    set_default_logger_callback,
    set_default_logger_severity,
    set_default_logger_verbosity,
    unregister_execution_provider_library,
)
from ortrain.options import ExecutionOrder, RunOptions, SessionOptions
from ortrain.sparse import SparseTensor
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
    "ModelCompiler",
    "ModelMetadata",
    "NoSuchFileError",
    "NodeArg",
    "NotImplementedInOrtrainError",
    "OrtAllocatorType",
    "OrtCompileApiFlags",
    "OrtDevice",
    "OrtDeviceMemoryType",
    "OrtEpAssignedNode",
    "OrtEpAssignedSubgraph",
    "OrtEpDevice",
    "OrtErrorCode",
    "OrtExecutionProviderDevicePolicy",
    "OrtExternalInitializerInfo",
    "OrtHardwareDevice",
    "OrtHardwareDeviceType",
    "OrtMemType",
    "OrtMemoryInfo",
    "OrtMemoryInfoDeviceType",
    "OrtSparseFormat",
    "OrtValue",
    "OrtValueVector",
    "OrtrainError",
    "RunOptions",
    "SessionIOBinding",
    "SessionOptions",
    "SparseTensor",
    "Trainer",
    "TrainingParameters",
    "TrainingSession",
    "__version__",
    "copy_tensors",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_build_info",
    "get_device",
    "get_ep_devices",
    "get_version_string",
    "has_collective_ops",
    "preload_dlls",
    "register_execution_provider_library",
    "register_gradient",
    "set_default_logger_callback",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
    "unregister_execution_provider_library",
]

del _interrupt, _main_interpreter


def set_seed(seed: int) -> None:
    """Set the process-wide random seed.

    Parameters
    ----------
    seed : int
        Any 64-bit integer. Modules created afterwards draw the same random numbers in every run with this seed.
    """
    _ortrain.set_seed(seed)
