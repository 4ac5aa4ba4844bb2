"""Write sources that include several sources of the core, which compile in less time.

Headers, and the templates that sources have in common, are then compiled once for a group. Two kinds of sources can be grouped:

- A source all of whose definitions are in the unnamed namespace of `ortrain`, as an operator is. The group includes each in a
  namespace with its name, so that each can define `shape` and `gradient`.
- Another source, if it uses no name that the rest of its group defines in an unnamed namespace, and the reverse.

``compile_together.py FOLDER ROOT SOURCE ... [--without SOURCE ...]``: the sources after --without are among those before it.

Kernels that Highway compiles once for each instruction set, and sources with macros, are compiled alone.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

# Source text, in bytes, that one run takes at most. Larger groups take less time in all, but more after a change.
MOST = 120_000

NAME = r"[A-Za-z_]\w*"
COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
UNNAMED = re.compile(r"^namespace \{\n(.*?)^\}  // namespace$", re.DOTALL | re.MULTILINE)
DIRECTIVE = re.compile(r"^#.*$", re.MULTILINE)
# What is left of a source all of whose definitions are in the unnamed namespace of ortrain.
NOTHING = re.compile(r"\s*namespace ortrain \{\s*\}\s*")
# A definition begins in the first column. Other names of its line that are taken for defined do no harm.
LINE = re.compile(r"^(?!template|return|static_assert|using namespace)[\w:].*", re.MULTILINE)
DEFINED = re.compile(rf"(?:struct|class|enum|using|union) ({NAME})|(?<![:.>\w])({NAME})(?=\(| = |\{{|;|\[)")
# A rule or a kernel maker, which takes a context and nothing else.
RULE = re.compile(rf"(?<!>\n)^(void|Kernel) ({NAME})\((\w+Context&) \w+\) {{", re.MULTILINE)
# Types and constants anywhere; functions where they are called, because local variables may have their names.
USED = re.compile(rf"(?<![.>\w])({NAME})(?=[(<])|\b([A-Z]\w*|k[A-Z]\w*)")


def main(folder: str, root: str, sources: list[str], left_out: set[str]) -> None:
    """Write the groups into a folder, and print the sources to compile: the groups, and the sources that are in none.

    A group includes sources of one folder of the root by their paths below it, and lies in a folder of that name.
    Sources that are left out have a place in a group, which does not include them: if a build with other operators needs
    them, the other groups remain as they are.
    """
    groups: dict[tuple[Path, bool], list[Group]] = {}
    for source in map(Path, sources):
        text = source.read_text()
        if "#define" in text or "hwy/" in text:
            if str(source) not in left_out:
                print(source)
            continue
        enclosed = is_unnamed_alone(text)
        top = Path(*source.parent.relative_to(root).parts[:1])
        of_folder = groups.setdefault((top, enclosed), [])
        group = next((each for each in of_folder if each.accepts(text)), None)
        if group is None:
            group = Group(Path(root), enclosed)
            of_folder.append(group)
        group.add(source, text, str(source) in left_out)
    for (top, enclosed), of_folder in groups.items():
        for number, group in enumerate(of_folder):
            if not group.sources:
                continue
            name = f"{'enclosed' if enclosed else 'open'}_{number}.cpp"
            path = Path(folder) / top / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_file() or path.read_text() != group.text:
                path.write_text(group.text)
            print(path)


@dataclass
class Group:
    """Sources that are compiled together."""

    root: Path
    enclosed: bool  # each in a namespace with its name
    size: int = 0
    unnamed: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    sources: list[tuple[Path, str]] = field(default_factory=list)

    def accepts(self, text: str) -> bool:
        """Whether a source with this text can be added."""
        apart = self.unnamed.isdisjoint(used(text)) and self.used.isdisjoint(defined_unnamed(text))
        return self.size + len(text) <= MOST and (self.enclosed or apart)

    def add(self, source: Path, text: str, is_left_out: bool) -> None:
        """Add a source with this text, or its place alone."""
        if not is_left_out:
            self.sources.append((source, text))
        self.size += len(text)
        self.unnamed |= defined_unnamed(text)
        self.used |= used(text)

    @property
    def text(self) -> str:
        """A source that includes those of the group."""
        if not self.enclosed:
            return "".join(f"{self.include(source)}\n" for source, _ in self.sources)
        # Headers come first: a source that includes one again, in its namespace, gets nothing.
        headers = {line for _, text in self.sources for line in DIRECTIVE.findall(text)}
        lines = sorted(headers)
        for source, text in self.sources:
            name = f"source_{source.stem}"
            lines += [
                f"namespace {name} {{ namespace ortrain {{ using namespace ::ortrain; namespace {{",
                *rules_once(text),
                "}}",
                self.include(source),
                f"}}  // namespace {name}",
            ]
        return "\n".join(lines) + "\n"

    def include(self, source: Path) -> str:
        """Return the line that includes a source."""
        return f'#include "{source.relative_to(self.root)}"'


def is_unnamed_alone(text: str) -> bool:
    """Whether a source includes headers and defines nothing but in the unnamed namespace of ortrain."""
    directives = DIRECTIVE.findall(text)
    rest = DIRECTIVE.sub("", COMMENT_OR_TEXT.sub("", UNNAMED.sub("", text)))
    return all(line.startswith("#include") for line in directives) and bool(NOTHING.fullmatch(rest))


def defined_unnamed(text: str) -> set[str]:
    """Names that a source defines in unnamed namespaces."""
    lines = [line for region in UNNAMED.findall(text) for line in LINE.findall(region)]
    return {name for line in lines for pair in DEFINED.findall(line) for name in pair if name}


def rules_once(text: str) -> list[str]:
    """Return declarations of the rules and kernel makers of a source, which say that these are called seldom.

    They are called once per model. Compilers then make them, and what only they call, small rather than fast. This does
    not concern the kernels that they make, which are functions too.
    """
    return [f"[[gnu::cold]] {result} {name}({context});" for result, name, context in RULE.findall(text)]


def used(text: str) -> set[str]:
    """Names that a source uses, other than members of values, and that it defines in unnamed namespaces."""
    names = {name for pair in USED.findall(COMMENT_OR_TEXT.sub("", text)) for name in pair if name}
    return names | defined_unnamed(text)


if __name__ == "__main__":
    _, to, below, *rest = sys.argv
    end = rest.index("--without") if "--without" in rest else len(rest)
    main(to, below, rest[:end], set(rest[end + 1 :]))
