"""The languages: one package each, found by its folder.

A package has a class ``Language`` derived from :class:`Base` and a folder ``templates``. Nothing else lists languages.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from codegen.spec.model import Spec

FOLDER = Path(__file__).resolve().parent


@dataclass
class File:
    """A file that a language renders: its template, its path from the root of the checkout, and what the template sees."""

    template: str
    path: str
    context: dict[str, Any] = field(default_factory=dict)


class Base(ABC):
    """What a language says of itself. Its templates see an instance under the name of the language."""

    key: ClassVar[str]
    """Name of the package, and of the language's file in ``spec/languages``."""

    folders: ClassVar[tuple[str, ...]] = ()
    """Folders that hold nothing but files of this language that are generated; any other file there is stale."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    @abstractmethod
    def files(self) -> Iterable[File]:
        """Return everything that the language renders."""


def names() -> list[str]:
    """Return the names of all languages, in alphabetical order."""
    return sorted(found.name for found in pkgutil.iter_modules([str(FOLDER)]) if found.ispkg)


def language_class(name: str) -> type[Base]:
    """Return the class of a language."""
    found: type[Base] = importlib.import_module(f"codegen.languages.{name}").Language
    return found
