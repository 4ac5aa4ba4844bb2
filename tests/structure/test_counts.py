"""Messages of the Python package write a number with its noun by ``counted``, which knows the singular."""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterator

import pytest
from ortrain._support.counts import agreeing, counted, sized

TESTS = pathlib.Path(__file__).parents[1]
PACKAGE = TESTS.parent / "bindings/python/ortrain"
NOUNS = """
    adapters answers arrays axes batches bits bytes categories cells characters checkpoints classes columns digits
    dimensions elements entries epochs examples features files gradients groups heads images indices inputs
    kernels labels layers lines losses means messages names nodes numbers operators outputs parameters pictures
    processes providers ranks rows runs scores seconds sequences shapes sizes statistics steps targets tensors
    texts threads tokens values weights words
"""
COUNT = re.compile(rf" (?:[a-z]+ )?(?:{'|'.join(NOUNS.split())})\b")
OTHER = {
    "_frameworks/weights_as_inputs.py": {"exporter"},  # a name
    "artifacts/graph/clipped_rows.py": {"node.name"},  # a name
    "artifacts/graph/unrepeat.py": {"array.size"},  # "3 of its 12 elements": repeated values are several
    "artifacts/report/findings.py": {"len(self.nodes)"},  # several nodes share a parameter
    "artifacts/report/messages.py": {"len(names)"},  # has a sentence for each number
    "cli/generate_command.py": {"path"},  # a name
    "cli/language_models.py": {"options.bits"},  # 4 or 8
    "cli/tables.py": {"_MOST_CHARACTERS"},
    "compilation.py": {"what"},  # a name
    "dashboard/runs.py": {"_MOST_FILES"},
    "dashboard/server.py": {"most"},
    "flower/external.py": {"_HEADING.size"},
    "legacy/horizontal.py": {"first + self._width - 1"},  # the number of a rank
    "models/language.py": {"heads"},  # every width is a multiple of 1
    "models/sequences.py": {"heads"},
    "text/generation.py": {"size"},  # "[batch, 8 tokens, vocabulary]" is a shape
    "torch/_export.py": {"size"},  # more than 2 GB
    "trainer/clipped_rows.py": {"sorted(counts)"},  # a list
}
"""Values before a plural that are never the number 1, by file."""


def plurals(text: str) -> Iterator[str]:
    """Return the values that stand before a plural in the f-strings of a source."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, after in zip(node.values, node.values[1:], strict=False):
            if (
                isinstance(value, ast.FormattedValue)
                and value.conversion != ord("r")
                and isinstance(after, ast.Constant)
                and COUNT.match(after.value)
            ):
                yield ast.unparse(value.value)


def test_a_plural_after_a_number_is_found():
    assert list(plurals("f'{len(x)} rows, {name!r} rows, {n} new rows, {n} ways'")) == ["len(x)", "n"]


def test_messages_write_numbers_with_their_nouns_by_the_helper():
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if names := set(plurals(path.read_text(encoding="utf-8"))):
            found[name] = names
    assert found == OTHER


@pytest.mark.parametrize("folder", ["jax_flax", "keras3", "pytorch"])
def test_tests_with_other_packages_expect_the_singular(folder):
    """``make test`` skips the tests of these folders, so a message may change without them."""
    wrong = re.compile(rf"(?<![\d.,])1{COUNT.pattern}")
    texts = {path.name: path.read_text(encoding="utf-8") for path in (TESTS / folder).glob("*.py")}
    assert {(name, found[0]) for name, text in texts.items() for found in wrong.finditer(text)} == set()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((1, "row"), "1 row"),
        ((0, "row"), "0 rows"),
        ((1, "class"), "1 class"),
        ((2, "class"), "2 classes"),
        ((3, "optimizer step"), "3 optimizer steps"),
        ((2, "batch"), "2 batches"),
        ((2, "category"), "2 categories"),
        ((2, "day"), "2 days"),
        ((2, "epoch"), "2 epochs"),
        ((1024, "byte", ","), "1,024 bytes"),
        ((1, "byte", ","), "1 byte"),
    ],
)
def test_a_number_has_the_form_of_its_noun(arguments, text):
    assert counted(*arguments) == text


def test_a_verb_agrees_with_its_number():
    assert [agreeing(count, "is", "are") for count in (0, 1, 2)] == ["are", "is", "are"]


def test_a_small_number_of_bytes_is_not_shown_as_zero():
    assert [sized(count) for count in (0, 1072, 99_000, 100_000, 2.5e6)] == [
        "0.00 kB",
        "1.07 kB",
        "99.00 kB",
        "0.10 MB",
        "2.50 MB",
    ]
