"""The changes to the weights of a model, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase


class ChangeKind(Enum):
    """The change of the exporter that is undone."""

    SEPARATED = "separated"
    """Several parameters with equal values had become one initializer."""
    RESTORED = "restored"
    """A bias of zeros had been left out."""
    TIED = "tied"
    """One parameter had become several initializers."""
    UNREPEATED = "unrepeated"
    """Rows of a parameter had been repeated."""


@dataclass(frozen=True)
class WeightChange:
    """A change to the weights of an exported model, made before the training artifacts are built."""

    kind: ChangeKind
    initializer: str
    """The initializer of the given model; for a restored bias, the weight of its layer."""
    parameters: tuple[str, ...]
    """The names of the initializers that replace it."""
    reason: str

    def __str__(self) -> str:
        """Return the change as a line of the report."""
        return f"{self.kind.value:<10}  {self.initializer}: {self.reason}"


class Choice:
    """The initializers that a user wants separated or tied: those that the rules find, none, or some by name."""

    def __init__(self, argument: str, names: Sequence[str] | bool | None) -> None:
        if names is True:
            names = None
        if isinstance(names, str) or not all(isinstance(name, str) for name in names or ()):
            raise TypeError(f"{argument} must be None, False or a list of names and patterns, not {names!r}")
        self._argument = argument
        self._patterns = None if names is None else list(names or ())

    @property
    def by_rule(self) -> bool:
        """Whether the rules decide."""
        return self._patterns is None

    def names(self, name: str) -> bool:
        """Whether the user named an initializer."""
        return any(fnmatchcase(name, pattern) for pattern in self._patterns or ())

    def check(self, initializers: Sequence[str]) -> None:
        """Raise a ValueError if a name or pattern fits none of the initializers."""
        for pattern in self._patterns or ():
            if not any(fnmatchcase(name, pattern) for name in initializers):
                raise ValueError(f"{self._argument}: the model has no floating-point initializer {pattern!r}")
