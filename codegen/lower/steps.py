"""Steps of any method: arguments, calls, results, settings."""

from __future__ import annotations

from dataclasses import dataclass

from codegen.lower.operands import Absent, Operand, Out, Room
from codegen.spec.model import Call, Given, Parameter
from codegen.spec.names import snake


@dataclass
class Step:
    """One step of a method."""

    @property
    def kind(self) -> str:
        """Its name in templates, such as ``read_names``."""
        return snake(type(self).__name__)


@dataclass
class Convert(Step):
    """Checks an argument and converts it to its C form."""

    argument: Given


@dataclass
class SameLength(Step):
    """Rejects two arrays of different lengths, because C gets one length for both."""

    first: Given
    other: Given


@dataclass
class Invoke(Step):
    """Makes a call; a failure ends the method. Results are stored in variables named after the parameters."""

    call: Call
    operands: list[Operand]

    @property
    def stored(self) -> list[Parameter]:
        """The parameters through which the call stores results."""
        return [o.parameter for o in self.operands if isinstance(o, Out)]


@dataclass
class Make(Step):
    """Makes a call whose result is the handle of the new object."""

    call: Call
    operands: list[Operand]

    @property
    def result(self) -> Parameter:
        """The handle."""
        return self.call.results[0]


@dataclass
class FillRoom(Step):
    """Makes a call twice, to get the size of a string and then to fill a buffer, and returns the string."""

    call: Call
    operands: list[Operand]

    @property
    def asking(self) -> list[Operand]:
        """The operands of the first call, which gets no buffer."""
        return [Absent(o.parameter) if isinstance(o, Room) else o for o in self.operands]


@dataclass
class Return(Step):
    """Converts the results that calls stored, and returns them."""

    results: list[Parameter]


@dataclass
class Choose(Step):
    """Runs one list of steps or the other, depending on an argument or, without one, on the mode of the object."""

    argument: Given | None
    when_true: list[Step]
    when_false: list[Step]


@dataclass
class Remember(Step):
    """Keeps the value of a setting, for languages that can return it."""

    argument: Given


@dataclass
class Default(Step):
    """Creates default settings if an argument is not given."""

    argument: Given


@dataclass
class CheckDevice(Step):
    """Rejects an unknown device."""

    argument: Given


@dataclass
class CheckProviders(Step):
    """Rejects unknown providers."""

    providers: Given
    options: Given


@dataclass
class KeepAlive(Step):
    """Keeps an argument alive as long as the object. If the object is a view of the argument, the argument is its owner."""

    argument: Given
    owner: bool = False


@dataclass
class MakeFromPathOrBytes(Step):
    """Creates the object from a file or from bytes, depending on the type of an argument."""

    argument: Given
    options: Given
    file: Call
    buffer: Call
