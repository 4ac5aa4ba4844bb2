"""Training of ONNX models on the device that runs them.

:mod:`ortrain.api` has the training loop, :mod:`ortrain.artifacts` creates the files that it starts from, and
:class:`InferenceSession` runs models forward.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ortrain import _start  # before the extension
from ortrain._ortrain import OrtValue, __version__
from ortrain._support.generated.enums import (
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
from ortrain.adapters import AdapterFormat, LoraAdapter
from ortrain.api.generated.gradient_graph_builder import GradientGraphBuilder
from ortrain.api.generated.node_arg import NodeArg
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
    FileError,
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
    set_seed,
    unregister_execution_provider_library,
)
from ortrain.options import ExecutionOrder, RunOptions, SessionOptions
from ortrain.sparse import SparseTensor
from ortrain.trainer import Trainer

if TYPE_CHECKING:
    from ortrain.legacy.generated.training_parameters import TrainingParameters
    from ortrain.training_session import TrainingSession

__all__ = [
    "AdapterFormat",
    "ExecutionMode",
    "ExecutionOrder",
    "FileError",
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

del _start

_OLDER = {
    "TrainingParameters": "ortrain.legacy.generated.training_parameters",
    "TrainingSession": "ortrain.training_session",
    "training_session": "ortrain.training_session",
}
"""Names of the older API, and their modules. A module is loaded when a program first uses one of its names; most programs use
none."""

_NEEDING_ONNX = ("artifacts", "models", "onnxblock")
"""Modules that are loaded in the same way, so that a program which only trains does not need onnx."""

if not TYPE_CHECKING:  # to a type checker, a module with this function has every name

    def __getattr__(name: str) -> Any:
        if name in _NEEDING_ONNX:
            return importlib.import_module(f"{__name__}.{name}")
        if name not in _OLDER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module(_OLDER[name])
        return getattr(module, name, module)

    def __dir__() -> list[str]:
        return sorted({*globals(), *_OLDER})
