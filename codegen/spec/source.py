"""Reading: YAML files with the line of every entry, so that errors can name file and line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Trail = tuple[str | int, ...]
"""The keys and indices that lead from the root of a document to a value."""


KINDS = {"classes": "class", "details": "details", "returns": "returns", "library": "library"}
"""The word for an entry under a key, unless it is the key without its s."""


@dataclass(frozen=True)
class Problem:
    """One reason why the spec is rejected."""

    file: str
    line: int
    entry: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}"
        return f"{where}: {self.entry}: {self.message}" if self.entry else f"{where}: {self.message}"


class SpecError(Exception):
    """The spec is rejected.

    Attributes
    ----------
    problems : list of Problem
        Every reason, in the order of the files.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(str(p) for p in self.problems))


@dataclass
class Document:
    """One YAML file: its data and the line of every value in it."""

    file: str
    data: dict[str, Any]
    lines: dict[Trail, int] = field(default_factory=dict)

    def line(self, trail: Iterable[str | int]) -> int:
        """Line of the value at ``trail``, or of the nearest value around it."""
        steps = tuple(trail)
        while steps and steps not in self.lines:
            steps = steps[:-1]
        return self.lines.get(steps, 1)

    def entry(self, trail: Iterable[str | int]) -> str:
        """Name of the innermost named entries around ``trail``: ``call TrainStep, parameter inputs``."""
        names: list[str] = []
        value: Any = self.data
        kind = ""
        for step in trail:
            previous = value
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                break
            if step == "language" and isinstance(value, dict):
                names.append(f"language {value.get('name', '')}")
            elif isinstance(step, str) and kind and isinstance(previous, dict) and "language" in self.data:
                names.append(f"{kind} {step}")
                kind = ""
            elif isinstance(step, str):
                kind = KINDS.get(step, step[:-1] if step.endswith("s") else step)
            elif isinstance(value, dict) and isinstance(value.get("name"), str):
                names.append(f"{kind} {value['name']}")
            else:
                names.append(f"{kind} number {int(step) + 1}")
        return ", ".join(names)

    def problem(self, trail: Iterable[str | int], message: str) -> Problem:
        """Return a problem at ``trail``."""
        steps = tuple(trail)
        return Problem(self.file, self.line(steps), self.entry(steps), message)


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CONSTRUCTOR = yaml.SafeLoader("")


def _read_node(node: yaml.Node, trail: Trail, document: Document, problems: list[Problem]) -> Any:
    document.lines[trail] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        out: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            line = key_node.start_mark.line + 1
            if key in out:
                problems.append(
                    Problem(
                        document.file,
                        line,
                        document.entry(trail),
                        f"duplicate key '{key}'",
                    )
                )
            here = (*trail, key)
            out[key] = _read_node(value_node, here, document, problems)
            document.lines[here] = line
        return out
    if isinstance(node, yaml.SequenceNode):
        return [_read_node(item, (*trail, i), document, problems) for i, item in enumerate(node.value)]
    return _CONSTRUCTOR.construct_object(node)


def read_document(path: Path, root: Path) -> Document:
    """Read one file.

    Parameters
    ----------
    path : Path
        The YAML file.
    root : Path
        File names in messages are relative to this folder.

    Raises
    ------
    SpecError
        When the file is not a YAML mapping, or has a duplicate key.
    """
    name = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SpecError([Problem(name, line, "", f"expected YAML, found: {error.problem}")]) from error
    if not isinstance(node, yaml.MappingNode):
        raise SpecError([Problem(name, 1, "", "expected a mapping at the top, found something else")])
    document = Document(name, {})
    problems: list[Problem] = []
    document.data = _read_node(node, (), document, problems)
    if problems:
        raise SpecError(problems)
    return document


def read_folder(folder: Path) -> list[Document]:
    """Read every ``*.yaml`` of a spec folder, in the order of their names."""
    return [read_document(path, folder.parent) for path in sorted(folder.rglob("*.yaml"))]
