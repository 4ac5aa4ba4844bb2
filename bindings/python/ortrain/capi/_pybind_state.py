"""The classes of the older Python API that programs import from ``onnxruntime.capi._pybind_state``."""

from __future__ import annotations

from ortrain._ortrain import OrtValue
from ortrain._support.generated.enums import (
    ExecutionMode,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtMemType,
)
from ortrain.api.generated.gradient_graph_builder import GradientGraphBuilder
from ortrain.api.generated.node_arg import NodeArg
from ortrain.devices import OrtDevice, OrtMemoryInfo
from ortrain.inference_session import ModelMetadata
from ortrain.io_binding import OrtValueVector
from ortrain.legacy.generated.training_parameters import TrainingParameters
from ortrain.legacy.late_session import TrainingConfigurationResult, TrainingSession, is_ortmodule_available
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
