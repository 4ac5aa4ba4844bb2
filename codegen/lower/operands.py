"""Operands: the arguments of a C call."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.spec.model import Given, Parameter
from codegen.spec.names import snake


@dataclass(frozen=True)
class Operand:
    """An operand of a call."""

    @property
    def kind(self) -> str:
        """Its name in templates, such as ``output_count``."""
        return snake(type(self).__name__)


@dataclass(frozen=True)
class Receiver(Operand):
    """The handle of the object."""


@dataclass(frozen=True)
class Passed(Operand):
    """An argument in its C form."""

    argument: Given


@dataclass(frozen=True)
class Length(Operand):
    """The number of elements or bytes of an array argument."""

    argument: Given


@dataclass(frozen=True)
class Allocator(Operand):
    """The CPU allocator."""


@dataclass(frozen=True)
class Environment(Operand):
    """The process-wide environment, for methods that take none."""


@dataclass(frozen=True)
class Fixed(Operand):
    """A fixed value that the method passes."""

    parameter: Parameter
    value: str


@dataclass(frozen=True)
class Absent(Operand):
    """Null, for an optional parameter that is left out."""

    parameter: Parameter


@dataclass(frozen=True)
class Out(Operand):
    """The address at which a call stores a result."""

    parameter: Parameter


@dataclass(frozen=True)
class Made(Operand):
    """The address at which a call stores the handle of a new object."""

    parameter: Parameter


@dataclass(frozen=True)
class Room(Operand):
    """The buffer that a call fills; null in the first of two calls, which only queries the size."""

    parameter: Parameter


@dataclass(frozen=True)
class RoomSize(Operand):
    """The size of that buffer, in and out."""

    parameter: Parameter


@dataclass(frozen=True)
class OutputCount(Operand):
    """The number of outputs."""


@dataclass(frozen=True)
class Outputs(Operand):
    """The array that receives outputs."""


@dataclass(frozen=True)
class ValueOf(Operand):
    """A value of an enumeration."""

    enum: str
    value: str


@dataclass(frozen=True)
class AddressOf(Operand):
    """The address of an argument, for a parameter without a type."""

    argument: Given


@dataclass(frozen=True)
class TypeOf(Operand):
    """The type of an argument, for a parameter without one."""

    argument: Given


@dataclass(frozen=True)
class Names(Operand):
    """The names in an argument that consists of named values."""

    argument: Given


@dataclass(frozen=True)
class Values(Operand):
    """The values in an argument that consists of named values."""

    argument: Given


@dataclass(frozen=True)
class CountDiffers(Operand):
    """Whether the counted number of elements differs from the number that a call returned."""
