"""What happens to an initializer, and the report on it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import onnx


class Fate(Enum):
    """The decision about an initializer."""

    TRAINED = "trained"
    """A parameter that training changes."""
    FROZEN = "frozen"
    """A parameter, stored in the checkpoint, that training does not change."""
    LEFT_OUT = "left out"
    """A constant of the models."""


@dataclass(frozen=True)
class InitializerReport:
    """The decision about one floating-point initializer, and the reason."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    fate: Fate
    reason: str
    recorded: bool = False
    """Whether the exporter's record decided."""

    @classmethod
    def of(
        cls, tensor: onnx.TensorProto, fate: Fate, reason: str, recorded: bool = False
    ) -> InitializerReport:
        """Return the report on an initializer."""
        name = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
        dtype = {"float": "float32", "double": "float64"}.get(name, name)
        return cls(tensor.name, tuple(tensor.dims), dtype, fate, reason, recorded)
