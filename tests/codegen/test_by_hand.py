"""Python's methods that are written by hand have the signatures of the spec."""

from __future__ import annotations

import inspect

import ortrain
from spec_copy import ROOT

from codegen.languages import language_class
from codegen.spec.check import load


def written(function: object, name: str) -> str:
    """Return the line that defines a function, as generated classes have it."""
    found = inspect.signature(function)  # type: ignore[arg-type]
    parts = []
    for p in found.parameters.values():
        annotation = "" if p.annotation is p.empty else f": {p.annotation}"
        default = "" if p.default is p.empty else f" = {p.default!r}"
        parts.append(f"{p.name}{annotation}{default}")
    line = f"{name}({', '.join(parts)}) -> {found.return_annotation}"
    return line.replace("Array]", "npt.NDArray[Any]]")  # its name in the file


def test_the_session_of_the_older_api_is_that_of_the_spec() -> None:
    python = language_class("python")(load(ROOT / "spec"))
    (cls,) = [c for c in python.classes if c.has("by_hand")]
    assert cls.own == "TrainingSession"
    expected, found = [], []
    for m in cls.methods:
        if m.pattern == "by_hand":
            expected.append(f"{m.own}({python.signature(m)}) -> {python.result(m)}")
            found.append(written(getattr(ortrain.TrainingSession, m.own), m.own))
    assert found == expected
    named = {m.own for m in cls.methods}
    own = {n for n in vars(ortrain.TrainingSession) if not n.startswith("_") or n == "__init__"}
    assert own - {"get_inputs", "get_outputs"} <= named, "members without an entry in the spec"
