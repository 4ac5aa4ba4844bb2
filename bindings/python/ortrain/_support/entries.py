"""Mappings whose entries the library looks up by name: parameters, properties, parameter groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Generic, TypeVar, overload

from ortrain.errors import InvalidArgumentError

V = TypeVar("V")
D = TypeVar("D")


# Not a base class: a Mapping iterates over its names, as type checkers know.
@Mapping.register
class Entries(ABC, Generic[V]):
    """A mapping that iterates over (name, entry) pairs, as the mappings of onnxruntime-training do.

    ``keys()``, ``values()``, ``items()``, ``get()``, ``dict(entries)`` and ``**entries`` work as for a dictionary. The views
    show the entries at the time of the call.
    """

    @abstractmethod
    def __getitem__(self, name: str) -> V:
        """Return the entry with this name."""

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[str, V]]:
        """Return an iterator over pairs of name and entry."""

    @abstractmethod
    def _names(self) -> list[str]:
        """Return the names in order."""

    @abstractmethod
    def _find(self, name: str) -> object:
        """Make a call that fails with InvalidArgumentError if there is no entry with this name."""

    def keys(self) -> KeysView[str]:
        """Return the names."""
        return dict.fromkeys(self._names()).keys()

    def values(self) -> ValuesView[V]:
        """Return the entries."""
        return dict(iter(self)).values()

    def items(self) -> ItemsView[str, V]:
        """Return pairs of name and entry."""
        return dict(iter(self)).items()

    @overload
    def get(self, name: str) -> V | None: ...
    @overload
    def get(self, name: str, default: D) -> V | D: ...
    def get(self, name: str, default: object = None) -> object:
        """Return the entry with this name, or ``default`` if there is none."""
        return self[name] if self._has(name) else default

    def _has(self, name: object) -> bool:
        """Return whether there is an entry with this name, without a search through all names."""
        if not isinstance(name, str) or "\0" in name:
            return False
        try:
            self._find(name)
        except (InvalidArgumentError, TypeError):  # the extension rejects text that UTF-8 cannot encode
            return False
        return True

    def _check(self, name: str) -> None:
        """Raise KeyError if there is no entry with this name."""
        if not self._has(name):
            raise KeyError(name)

    def _describe(self) -> str:
        """Return the entries in the notation of a dictionary."""
        return f"{type(self).__name__}({{{', '.join(f'{k!r}: {v!r}' for k, v in self)}}})"
