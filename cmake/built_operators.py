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


def header(entries: list[str]) -> str:
    """Return the text of the header."""
    names = listed(entries)
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
        pairs = sorted({pair_of(name) for name in names} | optimizers_of(names))
        body = [
            "// Operators that passes make are left out where made_from says so (op/operator.h).",
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
    path = pathlib.Path(sys.argv[1])
    text = header([entry for entry in sys.argv[2:] if entry])
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


if __name__ == "__main__":
    main()
