"""Casing: from the snake_case names of the spec to those of languages; and names mentioned in texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

MENTION = re.compile(r"@([a-z][a-z0-9_]*(?:\.[a-z0-9_]+)?)")
"""A mention in a text: ``@train_step`` is a call, ``@error_code.ok`` a value; also ``@true``, ``@false`` and ``@none``."""

Words = Mapping[str, str]


def capitalized(word: str, words: Words) -> str:
    """Return a word with a capital first letter, or its entry in ``words``."""
    return words.get(word, word[:1].upper() + word[1:])


def pascal(name: str, words: Words) -> str:
    """``learning_rate`` as ``LearningRate``."""
    return "".join(capitalized(word, words) for word in name.split("_"))


def camel(name: str, words: Words) -> str:
    """``learning_rate`` as ``learningRate``."""
    first, *rest = name.split("_")
    return first + "".join(capitalized(word, words) for word in rest)


def by_rule(rule: str, name: str, words: Words) -> str:
    """Return a name by a rule such as ``ORT_{UPPER}``."""
    return rule.replace("{UPPER}", name.upper()).replace("{Pascal}", pascal(name, words))


def resolved(text: str, name: Callable[[str], str]) -> str:
    """Return a text in which ``name`` has replaced each mention."""
    return MENTION.sub(lambda found: name(found[1]), text)


def snake(name: str) -> str:
    """``ReadNames`` as ``read_names``."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return name.replace("__", "_").lower()
