"""Write the header that lists the operators of a build.

``built_operators.py HEADER [ENTRY ...]``: without entries the build has all. An entry is the name of an
operator ("Conv", "com.microsoft.Gelu") or of an optimizer ("ortrain.Optimizer.lion"), or an ONNX file whose operators and
optimizers are included, with those of its subgraphs and functions.
"""

from __future__ import annotations

import pathlib
import re
import sys
from collections.abc import Iterable

sys.path.append(str(pathlib.Path(__file__).parents[1] / "bindings" / "python" / "ortrain" / "cli"))
import model_contents

# The answers differ between the sources of a build (asked_operators.py), which is why the function is static.
HEAD = (
    "// Which operators the build has. Written by cmake/built_operators.py.",
    "#pragma once",
    "",
    "#include <initializer_list>",
    "#include <string_view>",
    "",
    "namespace ortrain {",
    "",
)


def names_in(path: pathlib.Path) -> set[str]:
    """Return the operators of a model, prefixed with the domain unless it is ONNX's."""
    import onnx  # needed only for models

    return set(model_contents.operators_in(onnx.load(path, load_external_data=False)))


def listed(entries: Iterable[str]) -> set[str]:
    """Return the operators that a build is to have; none: all."""
    names: set[str] = set()
    for entry in entries:
        names |= names_in(pathlib.Path(entry)) if entry.endswith(".onnx") else {entry}
    return names


def pair_of(name: str) -> tuple[str, str]:
    """Return the domain and the type of an operator; names of optimizers lose their underscores."""
    domain, _, type_ = name.rpartition(".")
    return domain, type_.replace("_", "") if domain == "ortrain.Optimizer" else type_


def optimizers_of(names: Iterable[str]) -> set[tuple[str, str]]:
    """Return what the optimizers that are operators of com.microsoft, as AdamWOptimizer, are called in the core."""
    found = (re.fullmatch(r"com\.microsoft\.(\w+)Optimizer(?:V2)?", name) for name in names)
    return {("ortrain.Optimizer", match[1].lower()) for match in found if match}


def pairs_of(names: Iterable[str]) -> set[tuple[str, str]]:
    """Return the domains and types of operators, with the optimizers that they are."""
    listed_names = set(names)
    return {pair_of(name) for name in listed_names} | optimizers_of(listed_names)


def header(built: Iterable[tuple[str, str]], named: Iterable[str] | None = None) -> str:
    """Return the text of a header for a build with these operators; none: all.

    ``named`` are the types that the header has to answer for (asked_operators.py), by default all.
    """
    pairs = sorted(built)
    if not pairs and named is None:
        answer = ["static constexpr bool is_built(std::string_view, std::string_view) { return true; }"]
    else:
        answer = [
            "// Operators that passes make are left out where made_from says so (op/operator.h).",
            "static constexpr bool is_built(std::string_view domain, std::string_view type) {",
            '  if (domain == "ortrain.session") return true;',
            "  struct Operator {",
            "    std::string_view domain, type;",
            "  };",
            "  for (const Operator& built : std::initializer_list<Operator>{",
            *(f'           {{"{domain}", "{type_}"}},' for domain, type_ in pairs),
            "       })",
            "    if (built.domain == domain && built.type == type) return true;",
            *([] if named is None else rejection(named)),
            "  return false;",
            "}",
        ]
    return "\n".join([*HEAD, *answer, "", "}  // namespace ortrain", ""])


def rejection(named: Iterable[str]) -> list[str]:
    """Return lines that stop the compiler at a question about a type that is not among these."""
    return [
        "  bool is_named = type.empty();",
        "  for (const std::string_view name : std::initializer_list<std::string_view>{",
        *(f'           "{name}",' for name in sorted(named)),
        "       })",
        "    is_named = is_named || name == type;",
        '  if (!is_named) throw "cmake/asked_operators.py finds no operator of this name in the source";',
    ]


def write(path: pathlib.Path, text: str) -> None:
    """Write a file if it is missing or differs, so that nothing is compiled again without need."""
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def main() -> None:
    """Write the header."""
    write(pathlib.Path(sys.argv[1]), header(pairs_of(listed(entry for entry in sys.argv[2:] if entry))))


if __name__ == "__main__":
    main()
