"""Training of ONNX models on the device that runs them.

:mod:`ortrain.api` has the training loop, :mod:`ortrain.artifacts` creates the files that it starts from, and
:class:`InferenceSession` runs models forward.
"""

from __future__ import annotations

from ortrain import _main_interpreter, _ortrain  # in this order
from ortrain._ortrain import OrtValue, __version__
from ortrain.api.generated.enums import ExecutionMode, GraphOptimizationLevel
from ortrain.api.generated.gradient_graph_builder import GradientGraphBuilder
from ortrain.api.generated.inference_session import InferenceSession
from ortrain.api.generated.node_arg import NodeArg
from ortrain.api.generated.run_options import RunOptions
from ortrain.api.generated.session_options import SessionOptions
from ortrain.errors import (
    InvalidArgumentError,
    InvalidModelError,
    NoSuchFileError,
    NotImplementedInOrtrainError,
    OrtErrorCode,
    OrtrainError,
)

__all__ = [
    "ExecutionMode",
    "GradientGraphBuilder",
    "GraphOptimizationLevel",
    "InferenceSession",
    "InvalidArgumentError",
    "InvalidModelError",
    "NoSuchFileError",
    "NodeArg",
    "NotImplementedInOrtrainError",
    "OrtErrorCode",
    "OrtValue",
    "OrtrainError",
    "RunOptions",
    "SessionOptions",
    "__version__",
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
