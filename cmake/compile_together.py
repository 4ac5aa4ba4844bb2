"""Group sources that one compiler run can translate together, for development builds.

Two sources can share a run if neither uses a name that the other defines in an unnamed namespace. Headers, and the templates
that sources have in common, are then compiled once for a group. Kernels that Highway compiles once for each instruction set,
and sources with macros, are compiled alone.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

# Source text, in bytes, that one run takes at most. Larger groups take less time in all, but more after a change.
MOST = 60_000

NAME = r"[A-Za-z_]\w*"
COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
UNNAMED = re.compile(r"^namespace \{\n(.*?)^\}  // namespace$", re.DOTALL | re.MULTILINE)
# A definition begins in the first column. Other names of its line that are taken for defined do no harm.
LINE = re.compile(r"^(?!template|return|using namespace)[\w:].*", re.MULTILINE)
DEFINED = re.compile(rf"(?:struct|class|enum|using|union) ({NAME})|({NAME})(?=\(| = |\{{|;|\[)")
# Types and constants anywhere; functions where they are called, because local variables may have their names.
USED = re.compile(rf"(?<![.>\w])({NAME})(?=[(<])|\b([A-Z]\w*|k[A-Z]\w*)")


def main(sources: list[str]) -> None:
    """Print a line with the name of its group and its path for each source that is compiled with others."""
    groups: dict[str, list[Group]] = {}
    for source in sources:
        folder = Path(source).parent
        text = Path(source).read_text()
        if "#define" in text or "hwy/" in text:
            continue
        of_folder = groups.setdefault(str(folder), [])
        group = next((each for each in of_folder if each.accepts(text)), None)
        if group is None:
            group = Group(f"{folder.parent.name}_{folder.name}_{len(of_folder)}")
            of_folder.append(group)
        group.add(text)
        print(f"{group.name} {source}")


class Group:
    """Sources that are compiled together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = 0
        self.unnamed: set[str] = set()
        self.used: set[str] = set()

    def accepts(self, text: str) -> bool:
        """Whether a source with this text can be added."""
        return (
            self.size + len(text) <= MOST
            and self.unnamed.isdisjoint(used(text))
            and self.used.isdisjoint(defined_unnamed(text))
        )

    def add(self, text: str) -> None:
        """Add a source with this text."""
        self.size += len(text)
        self.unnamed |= defined_unnamed(text)
        self.used |= used(text)


def defined_unnamed(text: str) -> set[str]:
    """Names that a source defines in unnamed namespaces."""
    lines = [line for region in UNNAMED.findall(text) for line in LINE.findall(region)]
    return {name for line in lines for pair in DEFINED.findall(line) for name in pair if name}


def used(text: str) -> set[str]:
    """Names that a source uses, other than members of values, and that it defines in unnamed namespaces."""
    names = {name for pair in USED.findall(COMMENT_OR_TEXT.sub("", text)) for name in pair if name}
    return names | defined_unnamed(text)


if __name__ == "__main__":
    main(sys.argv[1:])
