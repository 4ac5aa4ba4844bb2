"""Find the sources that a build with some of the operators can do without.

``unneeded_sources.py FOLDER [ENTRY ...]`` prints those sources of core/src/ops, the folder, that register operators by name,
none of which the build has, and define nothing that other sources can use. Entries are those of built_operators.py.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from built_operators import listed
from compile_together import UNNAMED

NAMED = re.compile(
    r'\bORTRAIN_OPERATOR\(\{(?:\.domain = \w+,\s*)?\.type = "(\w+)"|\bORTRAIN_DECOMPOSITION\("(\w+)"'
)
# Whatever else may register something: tables, names that a macro makes, and operators that passes use.
REGISTERS = re.compile(
    r"\bORTRAIN_(?:OPERATOR|DECOMPOSITION|OPTIMIZER)\(|\bregister_rows\b|#define ORTRAIN|\bkSessionDomain\b"
)
# A function outside of unnamed namespaces.
EXTERNAL = re.compile(r"^(?!namespace |using |ORTRAIN_|static |#|//)\w[^\n]*\(", re.MULTILINE)


def is_unneeded(source: Path, built: set[str]) -> bool:
    """Whether a build without other operators than these, without their domains, can do without a source."""
    text = source.read_text()
    if EXTERNAL.search(UNNAMED.sub("", text)):
        return False
    registered = {name for pair in NAMED.findall(text) for name in pair if name}
    only_named = len(NAMED.findall(text)) == len(REGISTERS.findall(text))
    return bool(registered) and only_named and registered.isdisjoint(built)


def main() -> None:
    """Print the sources, one in a line."""
    built = {name.rpartition(".")[2] for name in listed(entry for entry in sys.argv[2:] if entry)}
    if not built:  # all
        return
    for source in sorted(Path(sys.argv[1]).rglob("*.cpp")):
        if is_unneeded(source, built):
            print(source)


if __name__ == "__main__":
    main()
