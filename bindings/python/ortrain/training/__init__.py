"""The package under the layout of ``onnxruntime.training``, for programs that import by those names.

:mod:`ortrain.compat` maps names of onnxruntime to names of ortrain. ``api``, ``artifacts`` and ``onnxblock`` are the modules of
:mod:`ortrain`.
"""

from __future__ import annotations

import importlib
from typing import Any

from ortrain import api
from ortrain.legacy.generated.training_parameters import TrainingParameters
from ortrain.legacy.late_session import is_ortmodule_available
from ortrain.library import set_seed
from ortrain.training import experimental, optim, utils

__all__ = [
    "TrainingParameters",
    "api",
    "artifacts",
    "experimental",
    "is_ortmodule_available",
    "onnxblock",
    "optim",
    "set_seed",
    "utils",
]

# These modules need onnx; training on a device does not.
_WITH_ONNX = {
    "artifacts": "ortrain.artifacts",
    "onnxblock": "ortrain.onnxblock",
}


def __getattr__(name: str) -> Any:
    if name in _WITH_ONNX:
        return importlib.import_module(_WITH_ONNX[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
