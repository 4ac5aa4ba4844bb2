"""Texts avoid phrases that make a reader stumble: idioms translated word by word from other languages.

Each phrase has a plain form: "separate" for "of its own", "is not a" for "is no", "unchanged" for "as it came", and a verb for
"stands in" and "says nothing".
"""

from __future__ import annotations

import pathlib
import re
import subprocess
from collections.abc import Callable

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PLACES = [
    "*.md", "*.txt", "bindings", "codegen", "core/src", "examples", "benchmarks", "scripts", "spec", "Makefile", "CMakeLists.txt",
    ":!tests", ":!*/generated/*", ":!core/src/backend",
    ":!bindings/python/ortrain/jax",
]  # fmt: skip
PHRASES = [
    r"(?<!part )\b(a|an|one|s) [\w -]*\bof (its|their) own\b",
    r"\b(is|are|was|were) no (?!(longer|more|less|better|fewer)\b)[a-zA-Z]",
    r"\bas (it|they) came\b",
    r"\bstands? in\b",
    r"\bsays? nothing\b",
    r"\bthe same is found\b",
    r"\bwhat is between\b",
    r"\bof which there (is|are) (none|one)\b",
    r"\b(goes|go|went) on\b",
    r"\b(is|are) going on\b",
    r"\b(anew|afresh)\b",
    r"\bfor want of\b",
    r"\bsomething else than\b",
    r"\bcomes? on top\b",
    r"\bfrom which on\b",
    r"\bthe same holds\b",
    r"\bas (a )?calls? takes? (it|them)\b",
]
FOUND = re.compile("|".join(f"(?:{phrase})" for phrase in PHRASES))
PAGES = [
    "*.md", ":!docs/reference/languages.md", ":!docs/reference/onnxruntime-api.md",
    ":!docs/reference/session-config.md",
]  # fmt: skip
PHRASES_OF_PAGES = [
    r"\bat hand\b",
    r"\b(its|their) kin\b",
    r"\b(is|are|was|were) to (be|have|get)\b",
    r"\bcosts? (what|nothing)\b",
    r"\bso many\b",
    r"\bthat many (rows|bytes|ranks|tokens|columns)\b",
    r"\bwhat (it is|to know|was not|happens to)\b",
    r"\b(in|of|into|with|for) what (?!(was|is)\b)",
    r"\b[Tt]he same (without|to the bit|into)\b",
    r"\bas (it|they) (is|are|was|were)\b",
    r"\bthose that (it|they|he|she|a|the)\b",
    r"\bsays? the same\b",
    r"\balone[.;]",
    r"\bstays? as (it|they)\b",
    r"\b(is|are) refused\b",
    r"\b[Nn]othing here\b",
    r"\b(and|which) says? so\b",
]
"""Phrases that the pages avoid too; comments in code are shorter and may need them."""

FOUND_IN_PAGES = re.compile("|".join(f"(?:{phrase})" for phrase in PHRASES_OF_PAGES))
ALLOWED = re.compile(r"\bthere (is|are|was|were) no\b", re.IGNORECASE)


def stumbling(line: str) -> bool:
    return FOUND.search(ALLOWED.sub("", line)) is not None


def files_in(places: list[str]) -> list[pathlib.Path]:
    """Return the text files of the repository in the given places."""
    listed = subprocess.run(
        ["git", "ls-files", *places], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    return [
        path
        for name in listed
        if (path := ROOT / name).is_file() and path.suffix not in {".onnx", ".npz", ".png"}
    ]


def lines_where(condition: Callable[[str], bool], texts: list[pathlib.Path]) -> list[str]:
    """Return the lines for which the condition holds, with their places."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if condition(line)
    ]


def test_texts_read_as_a_native_speaker_writes_them() -> None:
    texts = files_in(PLACES)
    assert len(texts) > 500
    found = lines_where(stumbling, texts)
    assert not found, "\n".join(found)


def test_pages_read_as_a_native_speaker_writes_them() -> None:
    pages = files_in(PAGES)
    assert len(pages) > 50
    found = lines_where(lambda line: FOUND_IN_PAGES.search(line) is not None, pages)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("the value is no tensor", True),
        ("There is no such file", False),
        ("it is no longer needed", False),
        ("a type of its own", True),
        ("only files of its own folder", False),
        ("passed on as they came", True),
        ("a bound that overflows says nothing", True),
        ("settings, of which there are none", True),
        ("a trainer that goes on counting", True),
        ("a run that goes on in onnxruntime", True),
        ("each round starts them anew", True),
        ("a list that has something else than numbers", True),
        ("the versions from which on it exists", True),
        ("what happens from then on", False),
    ],
)
def test_what_makes_a_reader_stumble(line: str, expected: bool) -> None:
    assert stumbling(line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("no machine was at hand", True),
        ("Adam and its kin", True),
        ("the language that is to have it", True),
        ("takes batches of that many rows", True),
        ("maps of what the model takes", True),
        ("the rows are taken as they are", True),
        ("builds the library with these operators alone.", True),
        ("checkpoints stay as they are", True),
        ("an unknown key is refused", True),
        ("the benchmark fails and says so", True),
        ("one thread alone runs the step", False),
        ("what was expected and what was found", False),
    ],
)
def test_what_makes_a_reader_of_a_page_stumble(line: str, expected: bool) -> None:
    assert (FOUND_IN_PAGES.search(line) is not None) == expected
