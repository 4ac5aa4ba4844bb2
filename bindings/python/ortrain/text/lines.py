"""JSON lines with texts, prompts and completions, or chats. All lines are checked before any line is used."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ortrain._files.reading import open_file
from ortrain._support.counts import counted

StrPath = str | os.PathLike[str]
Message = Mapping[str, str]

KINDS = ("text", "prompt and completion", "messages")
_SHOWN = 10  # invalid lines that an error names


@dataclass(frozen=True)
class Example:
    """What a line has: a text, a prompt with its completion, or a chat."""

    line: int
    """The number of the line, from 1."""
    text: str | None = None
    prompt: str | None = None
    completion: str | None = None
    messages: tuple[Message, ...] = ()
    """The messages of a chat, each with a ``role`` and a ``content``."""


def read_lines(path: StrPath) -> list[Example]:
    """Return the examples of a file with a JSON object in each line.

    An object has ``text``; or ``prompt`` and ``completion``; or ``messages``, a list of objects with ``role`` and ``content``.
    Other keys are ignored, and so are empty lines.

    Parameters
    ----------
    path : str or os.PathLike
        The file, in UTF-8.

    Raises
    ------
    ValueError
        When a line is not such an object. The message names the file and each such line.
    OSError
        When the file cannot be read.
    """
    found, wrong = [], []
    with open_file(path, "--data") as file:
        for number, raw in enumerate(file, 1):
            line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            if not line.strip():
                continue
            try:
                found.append(_example(line, number))
            except ValueError as error:
                wrong.append(f"line {number}: {error}")
    refuse(path, wrong, len(found) + len(wrong))
    if not found:
        raise ValueError(f"--data: expected lines with JSON objects in {path}, found none")
    return found


def refuse(path: StrPath, wrong: list[str], count: int) -> None:
    """Raise an error that names the lines of a file that cannot be used, if there are any."""
    if not wrong:
        return
    more = f"\n  and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    raise ValueError(
        f"--data: {path}: {len(wrong)} of {counted(count, 'line')} cannot be used; correct or remove them, nothing was left "
        "out silently"
        f"\n  " + "\n  ".join(wrong[:_SHOWN]) + more
    )


def _example(raw: bytes, number: int) -> Example:
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"expected UTF-8, found the byte 0x{raw[error.start]:02x}") from error
    try:
        value = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"expected a JSON object, found {line.strip()[:40]!r} ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {line.strip()[:40]!r}")
    kinds = [
        kind
        for kind, keys in (
            ("text", ("text",)),
            ("prompt", ("prompt", "completion")),
            ("messages", ("messages",)),
        )
        if any(key in value for key in keys)
    ]
    if len(kinds) != 1:
        keys = ", ".join(map(str, value)) or "none"
        raise ValueError(f"expected the keys of one of {', or '.join(KINDS)}, found {keys[:80]}")
    if kinds[0] == "messages":
        return Example(number, messages=_messages(value["messages"]))
    if kinds[0] == "text":
        return Example(number, text=_text(value, "text"))
    return Example(number, prompt=_text(value, "prompt", empty=True), completion=_text(value, "completion"))


def _text(value: Mapping[str, Any], key: str, empty: bool = False) -> str:
    if key not in value:
        raise ValueError(f"expected the key {key!r} too, found {', '.join(map(str, value))[:80]}")
    text = value[key]
    if not isinstance(text, str):
        raise ValueError(f"{key}: expected a text, found {repr(text)[:40]}")
    if not text and not empty:
        raise ValueError(f"{key}: expected a text, found an empty one")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{key}: expected Unicode, found half of a surrogate pair") from error
    return text


def _messages(value: object) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"messages: expected a list of messages, found {repr(value)[:40]}")
    found = []
    for place, message in enumerate(value, 1):
        if not isinstance(message, dict):
            raise ValueError(f"message {place}: expected an object, found {repr(message)[:40]}")
        try:
            role = _text(message, "role")
            found.append({**message, "role": role, "content": _text(message, "content", empty=True)})
        except ValueError as error:
            raise ValueError(f"message {place}: {error}") from error
    return tuple(found)
