"""Each type of the core has a name that no other type has.

If two sources define different types with one name, the linker keeps one of the functions that templates make for them, such as
the step of an iterator, and the other source runs with the wrong one. No compiler reports that.
"""

from __future__ import annotations

import re
from collections import defaultdict

from languages import ROOT

SOURCES = ROOT / "core/src"
TYPE = re.compile(
    r"(?:struct|class|union|enum(?: class)?) (?:alignas\(\d+\) )?(\w+)(?: final)?(?: : [^;{]+)? \{"
)


def types_of(text: str) -> list[str]:
    """Return the types that a source defines at the beginning of a line, outside of unnamed namespaces."""
    spaces: list[str] = []
    types = []
    for line in text.splitlines():
        if opened := re.match(r"namespace ?([\w:]*) \{", line):
            spaces.append(opened[1])
        elif line.startswith("}  // namespace"):
            spaces.pop()
        elif (found := TYPE.match(line)) and "" not in spaces:
            types.append("::".join([*spaces, found[1]]))
    return types


def test_no_two_types_have_one_name() -> None:
    places = defaultdict(list)
    for path in sorted([*SOURCES.rglob("*.h"), *SOURCES.rglob("*.cpp")]):
        for name in types_of(path.read_text(encoding="utf-8")):
            places[name].append(str(path.relative_to(SOURCES)))
    assert len(places) > 300
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_types_in_unnamed_namespaces_are_apart() -> None:
    unnamed = "namespace {\nstruct B {\n};\n}  // namespace\n"
    text = "namespace a {\n" + unnamed + "class C : public D {\n};\nstruct E::F {\n};\n}  // namespace a\n"
    assert types_of(text) == ["a::C"]
