"""Write the header that lists the operators of a build, and print the sources that it can do without.

``built_operators.py HEADER FOLDER [ENTRY ...]``: FOLDER has the sources of operators. Without entries the build has all. An entry
is the name of an operator ("Conv", "com.microsoft.Gelu"), or an ONNX file whose operators are included, with those of its
subgraphs and functions.
"""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any


def nodes_of(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yield the nodes and those of their subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in [attribute.g, *attribute.graphs]:
                yield from nodes_of(graph.node)


def names_in(path: pathlib.Path) -> set[str]:
    """Return the operators of a model, prefixed with the domain unless it is ONNX's."""
    import onnx  # needed only for models

    model = onnx.load(path, load_external_data=False)
    found = set()
    for nodes in [model.graph.node, *(function.node for function in model.functions)]:
        for node in nodes_of(nodes):
            domain = "" if node.domain == "ai.onnx" else node.domain
            found.add(f"{domain}.{node.op_type}" if domain else node.op_type)
    return found


def names_of(entries: list[str]) -> set[str]:
    """Return the operators that the entries name or contain."""
    names: set[str] = set()
    for entry in entries:
        names |= names_in(pathlib.Path(entry)) if entry.endswith(".onnx") else {entry}
    return names


# What other sources cannot use, and what defines nothing.
PRIVATE = re.compile(r"^namespace \{\n.*?^\}  // namespace$|//[^\n]*|^#.*?$", re.DOTALL | re.MULTILINE)
DEFINITION = re.compile(r"^(?!namespace |using |ORTRAIN_|HWY_)\w", re.MULTILINE)


def unneeded(folder: pathlib.Path, names: set[str]) -> list[pathlib.Path]:
    """Return the sources that mention none of the operators, and define nothing that other sources could use."""
    # As words: macros make texts of some names.
    types = re.compile("|".join(rf"\b{re.escape(name.rpartition('.')[2])}\b" for name in names))

    def needed(source: pathlib.Path) -> bool:
        text = source.read_text()
        if "kSessionDomain" in text or types.search(text):
            return True
        return DEFINITION.search(PRIVATE.sub("", text)) is not None

    sources = sorted(folder.rglob("*.cpp"))
    return [source for source in sources if not needed(source)] if names else []


def header(names: set[str]) -> str:
    """Return the text of the header."""
    head = [
        "// Which operators the build has. Written by cmake/built_operators.py.",
        "#pragma once",
        "",
        "#include <string_view>",
        "",
        "namespace ortrain {",
        "",
    ]
    if not names:
        body = ["constexpr bool is_built(std::string_view, std::string_view) { return true; }"]
    else:
        pairs = sorted(tuple(name.rpartition(".")[::2]) for name in names)
        body = [
            "// What passes make of other operators is there in any case.",
            "constexpr bool is_built(std::string_view domain, std::string_view type) {",
            '  if (domain == "ortrain.session") return true;',
            "  constexpr struct {",
            "    std::string_view domain, type;",
            "  } kBuilt[] = {",
            *(f'      {{"{domain}", "{type_}"}},' for domain, type_ in pairs),
            "  };",
            "  for (const auto& built : kBuilt)",
            "    if (built.domain == domain && built.type == type) return true;",
            "  return false;",
            "}",
        ]
    return "\n".join([*head, *body, "", "}  // namespace ortrain", ""])


def main() -> None:
    """Write the header if it is missing or differs."""
    path, folder = map(pathlib.Path, sys.argv[1:3])
    names = names_of([entry for entry in sys.argv[3:] if entry])
    for source in unneeded(folder, names):
        print(source)
    text = header(names)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


if __name__ == "__main__":
    main()
