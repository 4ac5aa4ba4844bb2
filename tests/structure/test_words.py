"""Texts avoid phrases that make a reader stumble: idioms translated word by word from other languages.

Each phrase has a plain form: "separate" for "of its own", "is not a" for "is no", "unchanged" for "as it came", and a verb for
"stands in" and "says nothing".
"""

from __future__ import annotations

import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PLACES = [
    "*.md", "*.txt", "bindings", "codegen", "core/src", "examples", "benchmarks", "scripts", "spec", "Makefile", "CMakeLists.txt",
    ":!CHANGELOG.md", ":!tests", ":!*/generated/*", ":!core/src/backend",
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
    r"\b(goes|go|went) on (counting|training)\b",
]
FOUND = re.compile("|".join(f"(?:{phrase})" for phrase in PHRASES))
ALLOWED = re.compile(r"\bthere (is|are|was|were) no\b", re.IGNORECASE)


def stumbling(line: str) -> bool:
    return FOUND.search(ALLOWED.sub("", line)) is not None


def test_texts_read_as_a_native_speaker_writes_them() -> None:
    listed = subprocess.run(
        ["git", "ls-files", *PLACES], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    texts = [
        path
        for name in listed
        if (path := ROOT / name).is_file() and path.suffix not in {".onnx", ".npz", ".png"}
    ]
    assert len(texts) > 500
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if stumbling(line)
    ]
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
    ],
)
def test_what_makes_a_reader_stumble(line: str, expected: bool) -> None:
    assert stumbling(line) == expected
