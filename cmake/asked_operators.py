"""Write a header for each source that asks which operators a build has, with those operators that the source names.

``asked_operators.py FOLDER ROOT --sources SOURCE ... --operators ENTRY ...``: entries are those of built_operators.py, ROOT is
core/src, and a source is one of its files or a group that includes such files (compile_together.py). A header changes only if
the build gains or loses an operator that the source names. Thus few sources are compiled again after a change of the list.

For each source that asks, the script prints ``SOURCE|PLACE``, where PLACE is the folder of the header built_operators.h for
this source, or nothing if the build needs no code of the source: it defines optimizers, none of which the build has. All other
sources of the core include FOLDER/built_operators.h, which rejects every question.

A source names operators as texts, or as first arguments of macros. A source that takes the names from elsewhere contains the
comment "Asks about every operator". If a source asks about an operator that it does not name, the compiler reports an error.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from built_operators import header, listed, pairs_of, write

ASKS = re.compile(
    r"\bORTRAIN_(?:OPERATOR|OPERATOR_FACT|DECOMPOSITION|OPTIMIZER)\(|\bregister_rows<|\bis_built\("
)
ASKS_ABOUT_EVERY = re.compile(r"^// Asks about every operator\b", re.MULTILINE)
# Where sources name the operators that they ask about. Rules also name operators, of the nodes that they add, in other places.
PLACES = [
    re.compile(r'\.type = ("\w+")'),
    re.compile(r"\.made_from = (\{.*?\})", re.DOTALL),
    re.compile(r"\bis_built\(([^()]*)\)"),
    re.compile(r'\{("\w+"(?:,\s*"\w+")*)'),  # a row of a table, or a list
    re.compile(r"\b[A-Z][A-Z_]*\(([^()]*)"),  # a macro
    re.compile(
        r"\bORTRAIN_OPERATOR\(\{\w+(?:<[^>]*>)?\(([^()]*)"
    ),  # a function that makes an operator with this name
    re.compile(r'\breturn\b[^;()]*\?\s*("\w+"\s*:\s*"\w+")'),  # a function that returns one of two names
]
NAME = re.compile(r'"([A-Z]\w*)"|^\s*([A-Z]\w*)')
OPTIMIZER = re.compile(r"\bORTRAIN_OPTIMIZER\(\s*(\w+)")
MEMBER = re.compile(r'^#include "(.*\.cpp)"$', re.MULTILINE)


def texts_of(source: Path, root: Path) -> list[str]:
    """Return the text of a source, or of each source in a group."""
    text = source.read_text()
    if source.is_relative_to(root):
        return [text]
    return [(root / member).read_text() for member in MEMBER.findall(text)]


def named_in(text: str) -> set[str]:
    """Return the types of operators, and the names of optimizers, that a source asks about, among other words."""
    if not ASKS.search(text):
        return set()
    places = (place for pattern in PLACES for place in pattern.findall(text))
    names = {name for place in places for pair in NAME.findall(place) for name in pair if name}
    return names | {title.lower() for title in OPTIMIZER.findall(text)}


def is_left_out(text: str, built: set[str]) -> bool:
    """Return whether a source defines optimizers and nothing else, and none of them is built."""
    titles = {title.lower() for title in OPTIMIZER.findall(text)}
    return bool(titles) and not titles & built and "ORTRAIN_OPERATOR(" not in text


def place_of(source: Path, folder: Path, root: Path) -> Path:
    """Return the folder for the header of a source: beside a group, and below ``folder`` for a file of the core."""
    if source.is_relative_to(root):
        return folder / source.relative_to(root).with_suffix("")
    return source.with_suffix("")


def main() -> None:
    """Write the headers that are missing or differ, and print the sources that ask, each with the place of its header."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("root", type=Path)
    parser.add_argument("--sources", type=Path, nargs="*", default=[])
    parser.add_argument("--operators", nargs="*", default=[])
    given = parser.parse_args()
    built = pairs_of(listed(entry for entry in given.operators if entry))
    write(given.folder / "built_operators.h", header((), ()))
    for source in given.sources:
        texts = texts_of(source, given.root)
        if texts and all(is_left_out(text, {name for _, name in built}) for text in texts):
            print(f"{source}|")
            continue
        names = set().union(*map(named_in, texts))
        if any(ASKS_ABOUT_EVERY.search(text) for text in texts):
            text = header(built)
        elif names or any(ASKS.search(text) for text in texts):
            text = header((pair for pair in built if pair[1] in names), names)
        else:
            continue
        place = place_of(source, given.folder, given.root)
        write(place / "built_operators.h", text)
        print(f"{source}|{place}")


if __name__ == "__main__":
    main()
